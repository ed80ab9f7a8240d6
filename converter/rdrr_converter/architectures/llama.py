"""Llama 1 to 3.3 and other models of its class (SmolLM2, TinyLlama, Yi, DeepSeek-Coder...)."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule

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
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
        *tensors.feed_forward_biases(read.flag("mlp_bias")),
    ),
)
