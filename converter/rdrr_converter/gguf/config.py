"""Translate GGUF metadata to the configuration of the same model in Hugging Face form.

Architecture modules read the result like any config.json. Where the metadata is silent, this module
states what llama.cpp assumes, because the defaults of Hugging Face differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import ConversionError, SourceError

from rdrr_converter.architectures._rope_scaling import yarn_mscale
from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families import gemma, latest, mixtures, rms, state_spaces, states
from rdrr_converter.gguf.families.layer_norms import SETTINGS
from rdrr_converter.gguf.metadata import GgufMetadata, Settings

KEYS: Mapping[str, str] = MappingProxyType(
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

_WIDTHS = ("moe_intermediate_size", "shared_expert_intermediate_size")
_ROPE_THETA = 10000.0
_WITH_EXPERTS = (
    "llama",
    "qwen2moe",
    "qwen3moe",
    "gpt-oss",
    "granitemoe",
    "granitehybrid",
    "olmoe",
    "gemma4",
    "qwen35moe",
    "qwen3next",
    "lfm2moe",
    "hunyuan-moe",
    "llama4",
    "nemotron_h_moe",
    "phimoe",
    *mixtures.SETTINGS,
)
_GEMMA2_27B_LAYERS = 46
_GEMMA3_PERIOD = 6
_GEMMA3_27B_LAYERS = 62


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
    if read.get("expert_count") and architecture.name not in _WITH_EXPERTS:
        raise ConversionError(
            f"a mixture of experts of architecture {architecture.name} cannot be converted",
            where=where,
            expected=", ".join(_WITH_EXPERTS),
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
        ours: value for key, ours in KEYS.items() if (value := read.of_layers(key)) is not None
    }
    if architecture.layer_norm:
        config["rms_norm_eps"] = read.number("attention.layer_norm_epsilon")
    if not architecture.has_attention:
        config["head_dim"] = None
        return config | _ARCHITECTURE_SETTINGS[architecture.name](read, config)
    config |= _rotated_heads(read, config)
    scaling = _rope_scaling(read)
    if scaling:
        config["rope_scaling"] = scaling
    return config | _ARCHITECTURE_SETTINGS.get(architecture.name, _no_settings)(read, config)


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


def _rope_scaling(read: GgufMetadata) -> dict[str, Any]:
    kind = read.get("rope.scaling.type")
    factor = read.get("rope.scaling.factor") or read.get("rope.scale_linear")
    if kind in (None, "none") and not (kind is None and factor and factor != 1.0):
        return {}
    stated = {
        "rope_type": kind or "linear",
        "factor": factor,
        "original_max_position_embeddings": read.get("rope.scaling.original_context_length"),
        "beta_fast": read.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": read.get("rope.scaling.yarn_beta_slow"),
    }
    # Both multiply the attention factor that llama.cpp computes from the scaling factor.
    for key in ("attn_factor", "yarn_attn_factor"):
        if read.get(f"rope.scaling.{key}") not in (None, 1.0):
            scale = read.number(f"rope.scaling.{key}") or 1.0
            stated["attention_factor"] = scale * yarn_mscale(float(factor or 1.0), 1.0)
    return {key: value for key, value in stated.items() if value is not None}


def _no_settings(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    del read, config
    return {}


def _llama(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Tell Mixtral (it has experts) and Mistral (it has a sliding window) from plain Llama.

    A list of the layers with a window makes it Ministral.
    """
    del config
    window = read.get("attention.sliding_window")
    slides = read.get("attention.sliding_window_pattern")
    if window and isinstance(slides, list):
        types = [SLIDING if one else FULL for one in slides]
        stated = {"layer_types": types, "sliding_window": window}
        return {"architectures": ["MinistralForCausalLM"], **stated}
    if read.get("expert_count"):
        return {
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": read.size("expert_count"),
            "sliding_window": window,
        }
    return {"architectures": ["MistralForCausalLM"], "sliding_window": window} if window else {}


def _qwen2moe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the widths of the experts; llama.cpp derives those that the first files omit."""
    inner = read.size("feed_forward_length")
    return {
        "moe_intermediate_size": inner // read.size("expert_used_count"),
        "shared_expert_intermediate_size": inner,
        **{key: config[key] for key in _WIDTHS if key in config},
        "norm_topk_prob": False,
    }


def _qwen3moe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the width of the experts, whose weights are normalized to a sum of 1."""
    width = "moe_intermediate_size"
    return {width: _qwen2moe(read, config)[width], "norm_topk_prob": True}


def _gemma2(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scale of the queries, which llama.cpp fixes for Gemma 2, and the window."""
    scalar = config["head_dim"]
    if read.size("block_count") == _GEMMA2_27B_LAYERS:
        scalar = config["hidden_size"] / config["num_attention_heads"]
    window = read.get("attention.sliding_window")
    return {"query_pre_attn_scalar": scalar, **({"sliding_window": window} if window else {})}


def _phi3(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sliding window (0 for none), and the context length before longrope scaling."""
    context = config.get("max_position_embeddings")
    return {
        "sliding_window": read.get("attention.sliding_window"),
        "original_max_position_embeddings": (
            read.get("rope.scaling.original_context_length") or context
        ),
    }


def _phimoe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Phi-3 has, its experts, and the factor that llama.cpp has for all contexts."""
    factor = read.number("rope.scaling.attn_factor")
    found = {**_phi3(read, config), "num_local_experts": read.size("expert_count")}
    found["num_experts"] = None
    if factor is not None:
        # Seven digits undo the rounding to float32.
        factor = float(f"{factor:.7g}")
        found["rope_scaling"] = {"short_mscale": factor, "long_mscale": factor}
    return found


def _gemma3(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layer types and the scale of the queries, which llama.cpp fixes for Gemma 3."""
    layers = read.size("block_count")
    pattern = read.get("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        period = read.size("attention.sliding_window_pattern") if pattern else _GEMMA3_PERIOD
        pattern = [(layer + 1) % period != 0 for layer in range(layers)]
    scalar, scale = config["head_dim"], read.number("attention.scale")
    if scale is not None:
        # Six digits undo the rounding to float32; 256 would come back as 256.00002.
        scalar = float(f"{scale**-2:.6g}")
    elif layers == _GEMMA3_27B_LAYERS:
        scalar = config["hidden_size"] / config["num_attention_heads"]
    return {
        "layer_types": [SLIDING if slides else FULL for slides in pattern],
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": read.number("rope.freq_base_swa") or _ROPE_THETA,
        "sliding_window": read.get("attention.sliding_window"),
    }


def _gemma_embedding(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Gemma 3 has, with attention to later tokens and a window on both sides."""
    return {**_gemma3(read, config), "use_bidirectional_attention": True}


def _gpt_oss(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the window and the width of the experts; YaRN's ramp is not rounded to whole pairs."""
    scaling = config.get("rope_scaling")
    return {
        "attention_bias": True,
        "intermediate_size": read.size("expert_feed_forward_length"),
        "num_local_experts": read.size("expert_count"),
        "rope_scaling": {**scaling, "truncate": False} if scaling else {"rope_type": "default"},
        "sliding_window": read.get("attention.sliding_window"),
    }


GRANITE_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "logit_scale": "logits_scaling",
        "residual_scale": "residual_multiplier",
    }
)
"""Granite's factors in Hugging Face's configuration, by GGUF's keys."""


def _granite(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return Granite's factors, and the sizes of its experts under its own names."""
    # Seven digits undo the rounding to float32.
    found: dict[str, Any] = {
        ours: float(f"{value:.7g}")
        for theirs, ours in GRANITE_KEYS.items()
        if (value := read.number(theirs)) is not None
    }
    shared = config.get("shared_expert_intermediate_size")
    if read.get("expert_count"):
        found["num_local_experts"] = read.size("expert_count")
    if shared:
        found["architectures"] = ["GraniteMoeSharedForCausalLM"]
        found["shared_intermediate_size"] = shared
    return found


def _granite_hybrid(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return Granite's factors, and the state spaces of its hybrids."""
    return {**_granite(read, config), **state_spaces.granite(read, config)}


_ARCHITECTURE_SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "llama": _llama,
        "qwen2moe": _qwen2moe,
        "qwen3moe": _qwen3moe,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "gemma-embedding": _gemma_embedding,
        "gemma3n": gemma.gemma3n,
        "gemma4": gemma.gemma4,
        "gpt-oss": _gpt_oss,
        "granite": _granite,
        "granitemoe": _granite,
        "phi3": _phi3,
        "phimoe": _phimoe,
        "chatglm": rms.glm,
        "glm4": rms.glm,
        "olmo2": rms.olmo2,
        "exaone4": rms.exaone4,
        "mistral3": rms.mistral3,
        "olmo": rms.olmo,
        **SETTINGS,
        **mixtures.SETTINGS,
        **states.SETTINGS,
        **state_spaces.SETTINGS,
        "granitehybrid": _granite_hybrid,
        **latest.SETTINGS,
    }
)
