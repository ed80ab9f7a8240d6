"""The configuration of a model in the metadata of a GGUF: read as Hugging Face's, and written.

Architecture modules read the result like any config.json. Where the metadata is silent, this module
states what llama.cpp assumes, because the defaults of Hugging Face differ. Settings for which
llama.cpp has no key are found when written metadata is read back and compared; settings that
llama.cpp ignores although it has a key for them are mentioned in notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import ConversionError, SourceError

from rdrr_converter.architectures._rope_scaling import yarn_mscale
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.architectures import WITH_EXPERTS
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import Entries, Notes
from rdrr_converter.gguf.unread_keys import unread_keys

_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "rope.freq_base": "rope_theta",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    }
)
"""Hugging Face's keys by GGUF's keys without the architecture prefix."""

_ROPE_THETA = 10000.0

_SCALINGS = ("linear", "yarn")
"""Types of rope scaling that have metadata keys; llama3 scaling is a tensor of divisors."""

_BETAS: Mapping[str, float] = MappingProxyType({"beta_fast": 32.0, "beta_slow": 1.0})
"""The numbers of rotations between which YaRN interpolates, and their usual values."""

_LAYER_NORM_EPS = 1e-5
"""Epsilon of LayerNorm in torch, for configurations that state none."""


def read_config(
    metadata: Mapping[str, Any],
    architecture: GgufArchitecture,
    *,
    vocab_size: int,
    tensors: int,
    tied: bool,
    where: object,
) -> dict[str, Any]:
    """Return the Hugging Face configuration of a GGUF.

    Args:
        metadata: Metadata of the file.
        architecture: How llama.cpp writes the architecture.
        vocab_size: Rows of the embedding, since the metadata need not state the vocabulary size.
        tensors: Number of tensors, an upper bound for the number of layers.
        tied: Whether the head is tied to the embedding.
        where: The file, for messages.

    Raises:
        SourceError: A size is missing or impossible.
        ConversionError: The model cannot be converted.
    """
    read = GgufMetadata(metadata, architecture.name, where, architecture.per_layer)
    if read.get("expert_count") and architecture.name not in WITH_EXPERTS:
        raise ConversionError(
            f"a mixture of experts of architecture {architecture.name} cannot be converted",
            where=where,
            expected=", ".join(WITH_EXPERTS),
        )
    if read.get("expert_count"):
        read.size("expert_count")
    read.size("block_count", maximum=tensors)
    config: dict[str, Any] = {
        "architectures": [architecture.hf_class],
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
    }
    config |= {
        ours: value for key, ours in _KEYS.items() if (value := read.of_layers(key)) is not None
    }
    if architecture.layer_norm:
        config["rms_norm_eps"] = read.number("attention.layer_norm_epsilon")
    if not architecture.has_attention:
        config["head_dim"] = None
    else:
        config |= _rotated_heads(read, config)
        scaling = _read_scaling(read, architecture)
        if scaling:
            config["rope_scaling"] = scaling
    complete = dict(config)
    for setting in architecture.settings:
        complete |= setting.read(read, config)
    return complete | unread_keys(read, architecture)


def _rotated_heads(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the heads of attention, and of their rope without its scaling.

    Args:
        read: The metadata.
        config: The keys so far, which win where they state a number of heads or a dimension.

    Raises:
        SourceError: A size is missing or impossible.
    """
    heads, hidden = read.size("attention.head_count"), read.size("embedding_length")
    keys: dict[str, Any] = {"num_key_value_heads": heads, "head_dim": hidden // heads}
    keys |= {key: config[key] for key in keys if key in config}
    head_dim = keys["head_dim"]
    if read.get("attention.key_length") is not None:
        head_dim = read.size("attention.key_length")
    if head_dim == 0 or head_dim % 2:
        raise SourceError(
            "impossible head dimension",
            where=read.where,
            expected="an even number, because rotary embeddings rotate pairs",
            found=head_dim,
        )
    keys["rope_theta"] = read.number("rope.freq_base") or _ROPE_THETA
    if read.get("rope.dimension_count") not in (None, head_dim):
        keys["partial_rotary_factor"] = read.size("rope.dimension_count") / head_dim
    return keys


def _read_scaling(read: GgufMetadata, architecture: GgufArchitecture) -> dict[str, Any]:
    kind = read.get("rope.scaling.type")
    factor = read.get("rope.scaling.factor") or read.get("rope.scale_linear")
    if kind in (None, "none") and not (kind is None and factor and factor != 1.0):
        return {}
    stated = {
        "rope_type": kind or "linear",
        "factor": factor,
        "original_max_position_embeddings": read.get("rope.scaling.original_context_length"),
    }
    for key, usual in _BETAS.items():
        name = f"rope.scaling.yarn_{key}"
        if read.accept(name, usual) or architecture.has_betas:
            stated[key] = read.get(name)
    # It multiplies the attention factor that llama.cpp computes from the scaling factor.
    if kind == "yarn" and read.get("rope.scaling.attn_factor") not in (None, 1.0):
        scale = read.number("rope.scaling.attn_factor") or 1.0
        stated["attention_factor"] = scale * yarn_mscale(float(factor or 1.0), 1.0)
    return {key: value for key, value in stated.items() if value is not None}


def write_config(
    config: Mapping[str, Any], architecture: GgufArchitecture
) -> tuple[Entries, Notes]:
    """Build the metadata with architecture-prefixed keys, and notes on what llama.cpp ignores.

    Args:
        config: Content of `config.json` of the model.
        architecture: The GGUF conventions of the architecture.
    """
    entries: Entries = {
        key: config[ours] for key, ours in _KEYS.items() if config.get(ours) is not None
    }
    head = config.get("head_dim") or 0  # latent attention states its sizes itself
    entries |= {
        "vocab_size": config["vocab_size"],
        "attention.value_length": head,
        "rope.dimension_count": int(head * (config.get("partial_rotary_factor") or 1.0)),
        **_write_scaling(config.get("rope_scaling") or {}),
    }
    if architecture.layer_norm:
        eps = entries.pop("attention.layer_norm_rms_epsilon", _LAYER_NORM_EPS)
        entries["attention.layer_norm_epsilon"] = eps
    for setting in architecture.settings:
        entries |= setting.write(config)
    notes = tuple(note for setting in architecture.settings for note in setting.notes(config))
    notes += _note_betas(config.get("rope_scaling") or {}, architecture)
    return {f"{architecture.name}.{key}": value for key, value in entries.items()}, notes


def _note_betas(scaling: Mapping[str, Any], architecture: GgufArchitecture) -> Notes:
    unusual = [key for key, usual in _BETAS.items() if scaling.get(key) not in (None, usual)]
    if architecture.has_betas or scaling.get("rope_type") != "yarn" or not unusual:
        return ()
    return (f"llama.cpp ignores {' and '.join(unusual)} of YaRN for this architecture",)


def _write_scaling(scaling: Mapping[str, Any]) -> Entries:
    kind = scaling.get("rope_type")
    if kind not in _SCALINGS:
        return {}
    stated = {
        "rope.scaling.type": kind,
        "rope.scaling.factor": float(scaling["factor"]),
        "rope.scaling.original_context_length": scaling.get("original_max_position_embeddings"),
        **{f"rope.scaling.yarn_{key}": scaling.get(key) for key in _BETAS},
    }
    if scaling.get("attention_factor") is not None:  # llama.cpp multiplies the usual one by this
        usual = yarn_mscale(float(scaling["factor"]), 1.0)
        stated["rope.scaling.attn_factor"] = scaling["attention_factor"] / usual
    return {key: value for key, value in stated.items() if value is not None}
