"""Helium 1: Llama with rope on neighbouring elements."""

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

ATTENTION_BIAS = read.flag("attention_bias")

HELIUM = ArchitectureRule(
    name="helium",
    classes=("HeliumForCausalLM", "HeliumModel"),
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 7040,
        "max_position_embeddings": 4096,
        "num_attention_heads": 20,
        "num_hidden_layers": 24,
        "num_key_value_heads": 20,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100000.0,
        "tie_word_embeddings": False,
        "vocab_size": 48000,
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
        *attention_biases(ATTENTION_BIAS, ATTENTION_BIAS, ATTENTION_BIAS, False),
        *FEED_FORWARD,
        *feed_forward_biases(read.flag("mlp_bias")),
        FINAL_NORM,
        HEAD,
    ),
)
