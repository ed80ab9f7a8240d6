"""Falcon: LayerNorm, parallel branches, and few keys and values, which follow their queries.

The first models (7B) have one key-value head and one norm for both branches; those of the newer
decoder (40B, 180B, 11B) have several, and a norm for each branch or one for both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rdrr_format.errors import ConversionError
from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_rope
from rdrr_converter.architectures.base import ArchitectureRule, Keys, StackRule
from rdrr_converter.architectures.config import Config

BIAS = read.flag("bias")
LAYER = "transformer.h.{layer}"
STACK = f"{LAYER}.self_attention.query_key_value"


def kv_heads(config: Config) -> int:
    """Rule: the key-value heads, which only the newer decoder and plain attention may choose."""
    stated, heads = config.get("num_key_value_heads"), config.integer("num_attention_heads")
    is_new, is_shared = config.flag("new_decoder_architecture"), config.flag("multi_query")
    if is_shared and not is_new:
        return 1
    return heads if stated is None else config.integer("num_key_value_heads")


def is_parallel(config: Config) -> bool:
    """Rule: whether both branches read the input of the layer."""
    return config.flag("parallel_attn") or config.flag("new_decoder_architecture")


def has_two_norms(config: Config) -> bool:
    """Rule: whether the feed-forward has a norm of its own.

    Raises:
        SourceError: The number of norms is neither 1 nor 2.
    """
    norms = config.get("num_ln_in_parallel_attn")
    if norms not in (None, 1, 2):
        raise config.fault("num_ln_in_parallel_attn", "1 or 2", norms)
    if config.flag("new_decoder_architecture"):
        return bool(norms != 1)
    return not config.flag("parallel_attn")


def inner_size(config: Config) -> int:
    """Rule: the width of the feed-forward; `ff_factor` says the same where it is stated.

    Raises:
        SourceError: It says something else.
    """
    width, factor = config.integer("intermediate_size"), config.get("ff_factor")
    if factor is not None and factor * config.integer("hidden_size") != width:
        raise config.fault("ff_factor", f"{width} over the hidden size", factor)
    return width


def _rope(config: Config) -> Mapping[str, object]:
    """Rule: rope on whole heads; refuse ALiBi before any tensor is read."""
    for key in ("alibi", "apply_residual_connection_post_layernorm"):
        if config.flag(key):
            raise ConversionError(
                "this form of Falcon cannot be converted: no op computes it",
                where=config.where,
                expected=f"{key}: false",
                found=f"{key}: true",
            )
    return read_rope(config)


def _norm_names(config: Config) -> dict[str, str]:
    """Return the names of the norms, which differ between the two decoders."""
    is_new = config.flag("new_decoder_architecture") and has_two_norms(config)
    names = ("ln_attn", "ln_mlp") if is_new else ("input_layernorm", "post_attention_layernorm")
    return tensors.layer_names(
        LAYER, dict(zip(("input_layernorm", "post_attention_layernorm"), names, strict=True))
    )


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the keys of the newer decoder only where the older cannot express the model."""
    blocks, kv_heads = manifest.inference, config["num_key_value_heads"]
    is_parallel = blocks.layer_pattern.parallel_residual
    two_norms = blocks.normalization.post_attention_norm
    is_new = is_parallel and (two_norms or kv_heads > 1)
    return config | {
        "multi_query": kv_heads == 1 and not is_new,
        "new_decoder_architecture": is_new,
        "num_ln_in_parallel_attn": (2 if two_norms else 1) if is_new else None,
        "parallel_attn": is_parallel,
    }


FALCON = ArchitectureRule(
    name="falcon",
    classes=("FalconForCausalLM", "FalconModel"),
    defaults={
        "bias": False,
        "hidden_act": "gelu",
        "hidden_size": 4544,
        "intermediate_size": lambda config: 4 * config.integer("hidden_size"),
        "max_position_embeddings": 2048,
        "multi_query": True,
        "new_decoder_architecture": False,
        "num_attention_heads": 71,
        "num_hidden_layers": 32,
        "num_ln_in_parallel_attn": None,
        "parallel_attn": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 65024,
    },
    sizes={"num_key_value_heads": kv_heads},
    inner=inner_size,
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": has_two_norms,
        "layer_norm": True,
    },
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    rope=_rope,
    parallel=is_parallel,
    exported=exported,
    body="transformer.",
    prefixes=("transformer.", ""),
    keys={
        "head_dim": "",
        "hidden_act": "activation",
        "intermediate_size": "ffn_hidden_size",
        "num_key_value_heads": "num_kv_heads",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    names={
        "model.embed_tokens": "transformer.word_embeddings",
        "model.norm": "transformer.ln_f",
        **tensors.layer_names(
            LAYER,
            {
                "self_attn.o_proj": "self_attention.dense",
                "mlp.up_proj": "mlp.dense_h_to_4h",
                "mlp.down_proj": "mlp.dense_4h_to_h",
            },
        ),
    },
    names_in=_norm_names,
    stacks=(
        StackRule(f"{STACK}.weight", tensors.STACKED_ATTENTION.parts, by_head=True),
        StackRule(f"{STACK}.bias", tensors.STACKED_BIASES.parts, by_head=True),
        *tensors.GGUF_STACKS,
    ),
    ignored=(r".*\.self_attention\.(maybe_rotary|rotary_emb|rotary)\.inv_freq",),
    tensors=(
        tensors.EMBEDDING,
        tensors.norm("input_layernorm"),
        tensors.norm("post_attention_layernorm", required=has_two_norms),
        *tensors.norm_biases("input_layernorm"),
        *tensors.norm_biases("post_attention_layernorm", required=has_two_norms),
        *tensors.ATTENTION,
        *tensors.attention_biases(BIAS),
        *tensors.UNGATED_FEED_FORWARD,
        *tensors.ungated_biases(BIAS),
        *tensors.BIASED_END,
    ),
)
