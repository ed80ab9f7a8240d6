"""Code World Model: Llama 3 with a sliding window in three of four layers."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_rope_with_default
from rdrr_converter.architectures.base import WINDOWED_ATTENTION
from rdrr_converter.architectures.layers import first_full_of
from rdrr_converter.architectures.llama import LLAMA

CWM = replace(
    LLAMA,
    name="cwm",
    classes=("CwmForCausalLM", "CwmModel"),
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 6144,
        "intermediate_size": 21504,
        "max_position_embeddings": 131072,
        "num_attention_heads": 48,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "sliding_window": 8192,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    attention=WINDOWED_ATTENTION,
    layer_types=first_full_of(4),
    rope=read_rope_with_default(
        {
            "rope_type": "llama3",
            "factor": 16.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        }
    ),
    tensors=tensors.of_model(*tensors.TWO_NORMS, *tensors.ATTENTION, *tensors.FEED_FORWARD),
)
