"""Ministral 8B of 2024: Mistral that states which layers have a sliding window."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures.layers import window_where_stated
from rdrr_converter.architectures.mistral import MISTRAL

MINISTRAL = replace(
    MISTRAL,
    name="ministral",
    classes=("MinistralForCausalLM", "MinistralModel"),
    defaults={
        **MISTRAL.defaults,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "vocab_size": 32000,
    },
    layer_types=window_where_stated,
)
