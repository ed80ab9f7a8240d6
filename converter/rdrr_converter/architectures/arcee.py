"""Arcee's AFM: Llama without gates, with the square of ReLU as the activation."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.layers import all_full
from rdrr_converter.architectures.tensors import (
    ATTENTION,
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    TWO_NORMS,
    UNGATED_FEED_FORWARD,
    attention_biases,
    ungated_biases,
)

ATTENTION_BIAS = read.flag("attention_bias")

ARCEE = ArchitectureRule(
    name="arcee",
    classes=("ArceeForCausalLM", "ArceeModel"),
    defaults={
        "hidden_act": "relu2",
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    attention={"query_pre_attn_scalar": read.head_dim},
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
    },
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    output={},
    layer_types=all_full,
    tensors=(
        EMBEDDING,
        *TWO_NORMS,
        *ATTENTION,
        *attention_biases(*[ATTENTION_BIAS] * 4),
        *UNGATED_FEED_FORWARD,
        *ungated_biases(read.flag("mlp_bias")),
        FINAL_NORM,
        HEAD,
    ),
)
