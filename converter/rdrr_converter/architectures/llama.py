"""Llama 1 to 3.3 and other models of its class (SmolLM2, TinyLlama, Yi, DeepSeek-Coder...)."""

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
    TWO_NORMS,
    attention_biases,
    feed_forward_biases,
)

ATTENTION_BIAS = read.flag("attention_bias")

LLAMA = ArchitectureRule(
    name="llama",
    classes=("LlamaForCausalLM", "LlamaModel"),
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    attention={"query_pre_attn_scalar": read.head_dim},
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
    },
    ffn={"activation": read.activation("hidden_act")},
    output={},
    layer_types=all_full,
    tensors=(
        EMBEDDING,
        *TWO_NORMS,
        *ATTENTION,
        *attention_biases(*[ATTENTION_BIAS] * 4),
        *FEED_FORWARD,
        *feed_forward_biases(read.flag("mlp_bias")),
        FINAL_NORM,
        HEAD,
    ),
)
