"""ERNIE 4.5 without experts: Llama with rope on neighbouring elements."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import interleaved, read_rope
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.layers import all_full
from rdrr_converter.architectures.tensors import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    FINAL_NORM,
    HEAD,
    TWO_NORMS,
    attention_biases,
    feed_forward_biases,
)

BIAS = read.flag("use_bias")

ERNIE4_5 = ArchitectureRule(
    name="ernie4_5",
    classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "Ernie4_5Model"),
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 131072,
        "num_attention_heads": 16,
        "num_hidden_layers": 18,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 103424,
    },
    attention={"query_pre_attn_scalar": read.head_dim},
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
    },
    ffn={"activation": read.activation("hidden_act")},
    output={},
    rope=interleaved(read_rope),
    layer_types=all_full,
    tensors=(
        EMBEDDING,
        *TWO_NORMS,
        *ATTENTION,
        *attention_biases(*[BIAS] * 4),
        *FEED_FORWARD,
        *feed_forward_biases(BIAS),
        FINAL_NORM,
        HEAD,
    ),
)
