"""OLMo 2: norms on the output of each branch only, and on the queries and the keys as a whole."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.layers import all_full
from rdrr_converter.architectures.tensors import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    FINAL_NORM,
    HEAD,
    POST_NORMS,
    attention_biases,
    norm,
)

ATTENTION_BIAS = read.flag("attention_bias")

OLMO2 = ArchitectureRule(
    name="olmo2",
    classes=("Olmo2ForCausalLM", "Olmo2Model"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 50304,
    },
    attention={"query_pre_attn_scalar": read.head_dim, "query_key_norm_spans_heads": True},
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
        "post_feedforward_norm": True,
    },
    ffn={"activation": read.activation("hidden_act")},
    output={},
    layer_types=all_full,
    tensors=(
        EMBEDDING,
        *ATTENTION,
        *attention_biases(*[ATTENTION_BIAS] * 4),
        norm("self_attn.q_norm", "q"),
        norm("self_attn.k_norm", "kv"),
        *POST_NORMS,
        *FEED_FORWARD,
        FINAL_NORM,
        HEAD,
    ),
)
