"""Nemotron 3 and 4, Minitron: LayerNorm with factors 1 + w, and squared ReLU without a gate."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.layers import all_full
from rdrr_converter.architectures.tensors import (
    ATTENTION,
    EMBEDDING,
    FINAL_NORM,
    FINAL_NORM_BIAS,
    HEAD,
    TWO_NORMS,
    UNGATED_FEED_FORWARD,
    attention_biases,
    norm_biases,
    ungated_biases,
)

ATTENTION_BIAS = read.flag("attention_bias")

NEMOTRON = ArchitectureRule(
    name="nemotron",
    classes=("NemotronForCausalLM", "NemotronModel"),
    defaults={
        "hidden_act": "relu2",
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "max_position_embeddings": 4096,
        "num_attention_heads": 48,
        "num_hidden_layers": 32,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 256000,
    },
    attention={"query_pre_attn_scalar": read.head_dim},
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "rms_norm_weight_offset": True,
        "post_attention_norm": True,
        "layer_norm": True,
    },
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    output={},
    rope=read_partial_rope,
    layer_types=all_full,
    keys={"rms_norm_eps": "norm_eps"},
    tensors=(
        EMBEDDING,
        *TWO_NORMS,
        *norm_biases("input_layernorm", "post_attention_layernorm"),
        *ATTENTION,
        *attention_biases(*[ATTENTION_BIAS] * 4),
        *UNGATED_FEED_FORWARD,
        *ungated_biases(read.flag("mlp_bias")),
        FINAL_NORM,
        FINAL_NORM_BIAS,
        HEAD,
    ),
)
