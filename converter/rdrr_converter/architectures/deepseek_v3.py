"""DeepSeek V3 and R1, Kimi K2 and Moonlight: latent attention, and mixtures with sigmoid scores."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._latent import ATTENTION, SIZES, TENSORS
from rdrr_converter.architectures._mixtures import SELECTION_BIAS, SIGMOID_EXPERTS, feed_forwards
from rdrr_converter.architectures._rope import interleaved_if, read_rope
from rdrr_converter.architectures.base import ArchitectureRule

DEEPSEEK_V3 = ArchitectureRule(
    name="deepseek_v3",
    classes=("DeepseekV3ForCausalLM", "DeepseekV3Model"),
    defaults={
        "attention_bias": False,
        "first_k_dense_replace": 3,
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_interleave": True,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 2.5,
        "tie_word_embeddings": False,
        "topk_group": 4,
        "v_head_dim": 128,
        "vocab_size": 129280,
    },
    sizes=SIZES,
    attention=ATTENTION,
    model_types=("kimi_k2",),
    experts=SIGMOID_EXPERTS,
    rope=interleaved_if("rope_interleave", read_rope),
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    extra_layers="num_nextn_predict_layers",
    has_draft_head=True,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *TENSORS,
        *feed_forwards(SELECTION_BIAS),
    ),
)
