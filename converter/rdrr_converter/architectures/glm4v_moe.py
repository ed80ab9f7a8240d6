"""The text model of GLM-4.5V: GLM 4.5 with multimodal rope sections, which are equal for text."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures.glm4_moe import GLM4_MOE
from rdrr_converter.architectures.qwen3_vl import QWEN3_VL

GLM4V_MOE = replace(
    GLM4_MOE,
    name="glm4v_moe",
    classes=("Glm4vMoeForConditionalGeneration", "Glm4vMoeModel", "Glm4vMoeTextModel"),
    model_types=("glm4v_moe_text",),
    text_type="glm4v_moe_text",
    defaults={
        **GLM4_MOE.defaults,
        "attention_bias": True,
        "max_position_embeddings": 65536,
        "num_nextn_predict_layers": 0,
        "vocab_size": 151424,
    },
    prefixes=QWEN3_VL.prefixes,
    other_parts=QWEN3_VL.other_parts,
)
