"""Qwen 2 and 2.5 (dense): Llama with biases on queries, keys and values."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import STATED_WINDOW, ArchitectureRule
from rdrr_converter.architectures.layers import window_above

QWEN2 = ArchitectureRule(
    name="qwen2",
    classes=("Qwen2ForCausalLM", "Qwen2Model"),
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    attention=STATED_WINDOW,
    layer_types=window_above,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(True, output=False),
        *tensors.FEED_FORWARD,
    ),
)
