"""SmolLM3: Llama without rope in every fourth layer."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_rope_of_some_layers
from rdrr_converter.architectures.base import WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import window_without_rope

SMOLLM3 = ArchitectureRule(
    name="smollm3",
    classes=("SmolLM3ForCausalLM", "SmolLM3Model"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "max_position_embeddings": 32768,
        "no_rope_layer_interval": 4,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 2000000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 128256,
    },
    attention=WINDOWED_ATTENTION,
    rope=read_rope_of_some_layers,
    layer_types=window_without_rope,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
        *tensors.feed_forward_biases(read.flag("mlp_bias")),
    ),
)
