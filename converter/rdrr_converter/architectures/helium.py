"""Helium 1: Llama with rope on neighbouring elements."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import interleaved, read_rope
from rdrr_converter.architectures.base import ArchitectureRule

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
    rope=interleaved(read_rope),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(output=False),
        *tensors.FEED_FORWARD,
        *tensors.feed_forward_biases(read.flag("mlp_bias")),
    ),
)
