"""Qwen 3 (dense): Llama with a norm over each head of queries and keys.

There are no biases unless the configuration states them.
"""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import STATED_WINDOW, ArchitectureRule
from rdrr_converter.architectures.layers import window_above

QWEN3 = ArchitectureRule(
    name="qwen3",
    classes=("Qwen3ForCausalLM", "Qwen3Model"),
    defaults={
        "head_dim": 128,
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
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS,
        *tensors.FEED_FORWARD,
    ),
)
