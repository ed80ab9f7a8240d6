"""ERNIE 4.5 without experts: Llama with rope on neighbouring elements."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import interleaved, read_rope
from rdrr_converter.architectures.base import ArchitectureRule

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
    rope=interleaved(read_rope),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(BIAS),
        *tensors.FEED_FORWARD,
        *tensors.feed_forward_biases(BIAS),
    ),
)
