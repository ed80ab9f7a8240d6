"""The text models of GLM-4.1V and 4.6V: GLM-4 of 2025 with multimodal rope sections."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures.glm4 import GLM4
from rdrr_converter.architectures.qwen3_vl import QWEN3_VL

GLM4V = replace(
    GLM4,
    name="glm4v",
    classes=(
        "Glm4vForConditionalGeneration",
        "Glm46VForConditionalGeneration",
        "Glm4vModel",
        "Glm4vTextModel",
    ),
    model_types=("glm4v_text", "glm46v"),
    text_type="glm4v_text",
    defaults={
        **{key: value for key, value in GLM4.defaults.items() if key != "head_dim"},
        "max_position_embeddings": 32768,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-5,
    },
    prefixes=QWEN3_VL.prefixes,
    other_parts=QWEN3_VL.other_parts,
)
