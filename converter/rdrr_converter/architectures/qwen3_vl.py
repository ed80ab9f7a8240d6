"""The text model of Qwen 3 VL: Qwen 3 with multimodal rope sections, which are equal for text."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._qwen_vision import qwen_vision
from rdrr_converter.architectures.base import ArchitectureRule

QWEN3_VL = ArchitectureRule(
    name="qwen3_vl",
    classes=("Qwen3VLForConditionalGeneration", "Qwen3VLModel", "Qwen3VLTextModel"),
    model_types=("qwen3_vl_text",),
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "max_position_embeddings": 128000,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
    },
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS,
        *tensors.FEED_FORWARD,
    ),
    prefixes=("model.language_model.", "language_model.model.", "language_model.", "model.", ""),
    other_parts=(r"(model\.)?visual\..*",),
    tower=qwen_vision("qwen3_vl_vision", (8, 16, 24)),
)
