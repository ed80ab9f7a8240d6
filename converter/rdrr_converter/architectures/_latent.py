"""Rules that DeepSeek V2 and its successors share, which have multi-head latent attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import softmax_correction
from rdrr_converter.architectures.base import TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.tensors import ATTENTION_BIAS, bias, norm, projection

LATENT_NORM_EPS = 1e-6
"""transformers gives the norms of latents no epsilon, so they have its default."""


def query_dim(config: Config) -> int:
    """Rule: elements of a head's query and key, of which one part is rotated.

    Raises:
        SourceError: The configuration states another value, or fewer key heads than query heads.
    """
    key, rope = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    for name, value in (("head_dim", rope), ("qk_head_dim", key + rope)):
        if config.get(name) not in (None, value):
            raise config.fault(name, str(value), config.get(name))
    return key + rope


def key_heads(config: Config) -> int:
    """Rule: the number of key heads, which is that of query heads.

    Raises:
        SourceError: The configuration states another number.
    """
    heads, stated = config.integer("num_attention_heads"), config.get("num_key_value_heads")
    if stated not in (None, heads):
        raise config.fault("num_key_value_heads", f"{heads}, as many as query heads", stated)
    return heads


def query_scalar(config: Config) -> float:
    """Rule: the number whose inverse square root is the softmax scale, corrected for YaRN."""
    return query_dim(config) / softmax_correction(config) ** 4


def has_query_latent(config: Config) -> bool:
    """Rule: whether queries are made from a latent."""
    return config.get("q_lora_rank") is not None


def has_plain_queries(config: Config) -> bool:
    """Rule: whether queries are projected from the hidden state."""
    return not has_query_latent(config)


def has_query_latent_bias(config: Config) -> bool:
    """Rule: whether the projection to the latent of queries has a bias."""
    return ATTENTION_BIAS(config) and has_query_latent(config)


SIZES: Mapping[str, object] = {
    "head_dim": query_dim,
    "num_key_value_heads": key_heads,
    "kv_lora_rank": read.integer("kv_lora_rank"),
    "q_lora_rank": read.optional_integer("q_lora_rank"),
    "qk_nope_head_dim": read.integer("qk_nope_head_dim"),
    "qk_rope_head_dim": read.integer("qk_rope_head_dim"),
    "v_head_dim": read.integer("v_head_dim"),
}
"""Fields of the block `architecture`."""

ATTENTION: Mapping[str, object] = {
    "query_pre_attn_scalar": query_scalar,
    "latent_norm_eps": LATENT_NORM_EPS,
}
"""Fields of the block `inference.attention`."""


def _if(required: Callable[[Config], bool], row: TensorRule) -> TensorRule:
    return replace(row, required=required)


TENSORS = (
    _if(has_plain_queries, projection("self_attn.q_proj", "q", "hidden")),
    _if(has_query_latent, projection("self_attn.q_a_proj", "q_latent", "hidden")),
    bias("self_attn.q_a_proj", "q_latent", has_query_latent_bias),
    _if(has_query_latent, norm("self_attn.q_a_layernorm", "q_latent")),
    _if(has_query_latent, projection("self_attn.q_b_proj", "q", "q_latent")),
    projection("self_attn.kv_a_proj_with_mqa", "latent_and_key", "hidden"),
    bias("self_attn.kv_a_proj_with_mqa", "latent_and_key", ATTENTION_BIAS),
    norm("self_attn.kv_a_layernorm", "latent"),
    projection("self_attn.kv_b_proj", "keys_and_values", "latent"),
    projection("self_attn.o_proj", "hidden", "values"),
    bias("self_attn.o_proj", "hidden", ATTENTION_BIAS),
)
"""The tensors of the attention of a layer."""
