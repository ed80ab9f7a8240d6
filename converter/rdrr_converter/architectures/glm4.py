"""GLM-4 of 2025 (0414) and GLM-Z1: like GLM, with norms on the output of each branch as well."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures.glm import GLM
from rdrr_converter.architectures.tensors import norm

_POST_NORMS = (norm("post_self_attn_layernorm"), norm("post_mlp_layernorm"))

GLM4 = replace(
    GLM,
    name="glm4",
    classes=("Glm4ForCausalLM", "Glm4Model"),
    tensors=(*GLM.tensors[:3], *_POST_NORMS, *GLM.tensors[3:]),
)
