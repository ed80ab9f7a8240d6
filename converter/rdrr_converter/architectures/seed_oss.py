"""Seed-OSS: Llama with biases on queries, keys and values.

A separate flag decides on the bias of the output projection.
"""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.llama import LLAMA

SEED_OSS = replace(
    LLAMA,
    name="seed_oss",
    classes=("SeedOssForCausalLM", "SeedOssModel"),
    defaults={
        "attention_bias": True,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 27648,
        "max_position_embeddings": 524288,
        "num_attention_heads": 80,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 155136,
    },
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(output=read.flag("attention_out_bias")),
        *tensors.FEED_FORWARD,
        *tensors.feed_forward_biases(read.flag("mlp_bias")),
    ),
)
