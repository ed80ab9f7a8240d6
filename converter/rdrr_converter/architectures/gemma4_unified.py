"""Gemma 4 whose images and sounds enter without towers of their own; its text model is dense."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures.gemma4 import GEMMA4

GEMMA4_UNIFIED = replace(
    GEMMA4,
    name="gemma4_unified",
    classes=(
        "Gemma4UnifiedForCausalLM",
        "Gemma4UnifiedForConditionalGeneration",
        "Gemma4UnifiedTextModel",
    ),
    model_types=("gemma4_unified_text",),
    text_type="gemma4_unified_text",
    defaults={
        **GEMMA4.defaults,
        "hidden_size_per_layer_input": 0,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "vocab_size_per_layer_input": 0,
    },
)
