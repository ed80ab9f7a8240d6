"""GLM 4.5, 4.6 and 4.7: mixtures with sigmoid scores, behind dense first layers."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import SELECTION_BIAS, SIGMOID_EXPERTS, feed_forwards
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import ArchitectureRule

GLM4_MOE = ArchitectureRule(
    name="glm4_moe",
    classes=("Glm4MoeForCausalLM", "Glm4MoeModel"),
    defaults={
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 46,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_qk_norm": False,
        "vocab_size": 151552,
    },
    experts=SIGMOID_EXPERTS,
    rope=read_partial_rope,
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    extra_layers="num_nextn_predict_layers",
    has_draft_head=True,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(output=False),
        *tensors.required_if(read.flag("use_qk_norm"), *tensors.QUERY_KEY_NORMS),
        *feed_forwards(SELECTION_BIAS),
    ),
)
