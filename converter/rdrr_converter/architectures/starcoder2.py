"""StarCoder 2: LayerNorm, biases and a feed-forward without a gate."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.layers import window_everywhere
from rdrr_converter.architectures.tensors import (
    ATTENTION,
    EMBEDDING,
    FINAL_NORM,
    FINAL_NORM_BIAS,
    HEAD,
    TWO_NORMS,
    UNGATED_FEED_FORWARD,
    attention_biases,
    layer_names,
    norm_biases,
    ungated_biases,
)

USE_BIAS = read.flag("use_bias")

STARCODER2 = ArchitectureRule(
    name="starcoder2",
    classes=("Starcoder2ForCausalLM", "Starcoder2Model"),
    defaults={
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "max_position_embeddings": 4096,
        "num_attention_heads": 24,
        "num_hidden_layers": 30,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_bias": True,
        "vocab_size": 49152,
    },
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "sliding_window": read.window("sliding_window"),
    },
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
        "layer_norm": True,
    },
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    output={},
    layer_types=window_everywhere,
    keys={"rms_norm_eps": "norm_epsilon"},
    names=layer_names(
        "model.layers.{layer}", {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}
    ),
    tensors=(
        EMBEDDING,
        *TWO_NORMS,
        *norm_biases("input_layernorm", "post_attention_layernorm"),
        *ATTENTION,
        *attention_biases(*[USE_BIAS] * 4),
        *UNGATED_FEED_FORWARD,
        *ungated_biases(USE_BIAS),
        FINAL_NORM,
        FINAL_NORM_BIAS,
        HEAD,
    ),
)
