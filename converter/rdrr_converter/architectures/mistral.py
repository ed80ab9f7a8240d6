"""Mistral 7B and its successors, alone or in a multimodal model.

It is Llama with a sliding window in every layer.
"""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import STATED_WINDOW, ArchitectureRule
from rdrr_converter.architectures.layers import window_everywhere

MISTRAL = ArchitectureRule(
    name="mistral",
    classes=("MistralForCausalLM", "Mistral3ForConditionalGeneration", "MistralModel"),
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    attention=STATED_WINDOW,
    layer_types=window_everywhere,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.FEED_FORWARD,
    ),
    prefixes=("model.", "language_model.model.", "model.language_model.", ""),
    other_parts=(r"(model\.)?(vision_tower|multi_modal_projector)\..*",),
)
