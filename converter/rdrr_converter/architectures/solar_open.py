"""Solar Open: GLM 4.5's mixtures in every layer, with Llama's attention and rope."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import SELECTION_BIAS, feed_forwards
from rdrr_converter.architectures.glm4_moe import GLM4_MOE

SOLAR_OPEN = replace(
    GLM4_MOE,
    name="solar_open",
    classes=("SolarOpenForCausalLM", "SolarOpenModel"),
    defaults={
        "attention_bias": False,
        "first_k_dense_replace": 0,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": read.integer("moe_intermediate_size"),
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1280,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "vocab_size": 196608,
    },
    extra_layers=None,
    has_draft_head=False,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(output=False),
        *feed_forwards(SELECTION_BIAS),
    ),
)
