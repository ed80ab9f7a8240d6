"""DeepSeek V2: latent attention, and mixtures with softmax scores behind dense first layers."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._latent import ATTENTION, SIZES, TENSORS
from rdrr_converter.architectures._mixtures import SOFTMAX_EXPERTS, feed_forwards
from rdrr_converter.architectures._rope import interleaved, read_rope
from rdrr_converter.architectures.base import ArchitectureRule

DEEPSEEK_V2 = ArchitectureRule(
    name="deepseek_v2",
    classes=("DeepseekV2ForCausalLM", "DeepseekV2Model"),
    defaults={
        "attention_bias": False,
        "first_k_dense_replace": 0,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "kv_lora_rank": 512,
        "max_position_embeddings": 2048,
        "moe_intermediate_size": 1407,
        "n_group": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 32,
        "num_experts_per_tok": None,
        "num_hidden_layers": 32,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": None,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
    sizes=SIZES,
    attention=ATTENTION,
    experts=SOFTMAX_EXPERTS,
    rope=interleaved(read_rope),
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *TENSORS,
        *feed_forwards(),
    ),
)
