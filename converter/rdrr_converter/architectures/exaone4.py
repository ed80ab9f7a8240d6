"""EXAONE 4: norms only on the output of each branch, no rope in the layers without a window."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_rope_of_windows
from rdrr_converter.architectures.base import RMS_NORMS, WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import every_nth_full_if_window

EXAONE4 = ArchitectureRule(
    name="exaone4",
    classes=("Exaone4ForCausalLM", "Exaone4Model"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "tie_word_embeddings": False,
        "vocab_size": 102400,
    },
    attention=WINDOWED_ATTENTION,
    normalization={**RMS_NORMS, "post_feedforward_norm": True},
    rope=read_rope_of_windows,
    layer_types=every_nth_full_if_window,
    tensors=tensors.of_model(
        *tensors.ATTENTION,
        *tensors.QUERY_KEY_NORMS,
        *tensors.POST_NORMS,
        *tensors.FEED_FORWARD,
    ),
)
