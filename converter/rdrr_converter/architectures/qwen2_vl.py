"""The text models of Qwen 2 VL and 2.5 VL: Qwen 2 with multimodal rope sections."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import window_above

QWEN2_VL = ArchitectureRule(
    name="qwen2_vl",
    classes=(
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLModel",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLModel",
    ),
    model_types=("qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "max_position_embeddings": 32768,
        "max_window_layers": 80,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    attention=WINDOWED_ATTENTION,
    layer_types=window_above,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(True, output=False),
        *tensors.FEED_FORWARD,
    ),
    prefixes=("model.", "model.language_model.", "language_model.model.", "language_model.", ""),
    other_parts=(r"(model\.)?visual\..*",),
)
