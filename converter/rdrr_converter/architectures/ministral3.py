"""Ministral 3, alone or in a multimodal model: Mistral with queries scaled by their position."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import temperature_length, temperature_scale
from rdrr_converter.architectures.mistral import MISTRAL

MINISTRAL3 = replace(
    MISTRAL,
    name="ministral3",
    classes=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration", "Ministral3Model"),
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 262144,
        "num_attention_heads": 32,
        "num_hidden_layers": 34,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 131072,
    },
    attention={
        **MISTRAL.attention,
        "sliding_window": read.window("sliding_window"),
        "temperature_scale": temperature_scale,
        "temperature_length": temperature_length,
    },
)
