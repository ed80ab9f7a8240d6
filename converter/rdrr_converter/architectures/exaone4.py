"""EXAONE 4: norms only on the output of each branch, no rope in the layers without a window."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import read_rope_of_windows
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.layers import every_nth_full_if_window
from rdrr_converter.architectures.tensors import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    FINAL_NORM,
    HEAD,
    POST_NORMS,
    QUERY_KEY_NORMS,
)

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
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "sliding_window": read.window("sliding_window"),
    },
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
        "post_feedforward_norm": True,
    },
    ffn={"activation": read.activation("hidden_act")},
    output={},
    rope=read_rope_of_windows,
    layer_types=every_nth_full_if_window("sliding_window_pattern"),
    tensors=(
        EMBEDDING,
        *ATTENTION,
        *QUERY_KEY_NORMS,
        *POST_NORMS,
        *FEED_FORWARD,
        FINAL_NORM,
        HEAD,
    ),
)
