"""Models with latents, linear attention or convolutions, and mixtures with sigmoid routers."""

from __future__ import annotations

from support.tiny_models.model import TinyModel
from support.tiny_models.rms_norm import HUNYUAN_ROPE

GATED_MIXTURE = (
    ("moe_intermediate_size", 96),
    ("num_experts", 6),
    ("num_experts_per_tok", 2),
    ("shared_expert_intermediate_size", 160),
)
LINEAR_ATTENTION = (
    ("full_attention_interval", 2),
    ("linear_conv_kernel_dim", 4),
    ("linear_key_head_dim", 24),
    ("linear_num_key_heads", 2),
    ("linear_num_value_heads", 6),
    ("linear_value_head_dim", 20),
)
SIGMOID_EXPERTS = (
    ("first_k_dense_replace", 1),
    ("moe_intermediate_size", 96),
    ("n_group", 4),
    ("n_routed_experts", 12),
    ("n_shared_experts", 2),
    ("norm_topk_prob", True),
    ("num_experts_per_tok", 5),
    ("routed_scaling_factor", 1.5),
    ("topk_group", 2),
)
"""12 experts in 4 groups, of which 5 in 2 groups are selected."""
LATENTS = (
    ("head_dim", 32),
    ("kv_lora_rank", 72),
    ("num_key_value_heads", 4),
    ("q_lora_rank", 88),
    ("qk_nope_head_dim", 48),
    ("qk_rope_head_dim", 32),
    ("v_head_dim", 40),
)
"""Latent attention whose sizes are all different."""
LATENT_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
SOLAR_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 64,
}
CONVOLUTIONS = (
    ("conv_bias", True),
    ("conv_L_cache", 3),
    ("full_attn_idxs", [1, 3]),
    ("tie_word_embeddings", True),
)
DYNAMIC = {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 50000.0}
LATEST_MODELS = (
    TinyModel("cwm", 256, (("sliding_window", 24),), least_layers=2),
    TinyModel("iquestcoder"),
    TinyModel(
        "granite_swa",
        256,
        (
            ("attention_multiplier", 0.09375),
            ("embedding_multiplier", 12.0),
            ("layer_rope_theta", [500.0, 10000.0, 10000.0, 0, 0, 10000.0]),
            ("logits_scaling", 8.0),
            ("residual_multiplier", 0.22),
            ("sliding_window", 24),
        ),
        least_layers=6,
    ),
    TinyModel("lfm2", 256, CONVOLUTIONS),
    TinyModel(
        "lfm2_moe",
        256,
        (
            *CONVOLUTIONS,
            ("layer_types", ["conv", "full_attention"]),
            ("moe_intermediate_size", 96),
            ("num_dense_layers", 1),
            ("num_experts", 6),
            ("num_experts_per_tok", 3),
            ("num_hidden_layers", 2),
        ),
    ),
    TinyModel(
        "lfm3",
        256,
        (
            ("conv_L_cache", 7),
            ("layer_types", ["conv", "full_attention", "sliding_attention"]),
            ("num_hidden_layers", 3),
            ("sliding_window", 24),
            ("tie_word_embeddings", True),
        ),
        least_layers=3,
    ),
    TinyModel("qwen3_5_text", 256, LINEAR_ATTENTION),
    TinyModel("qwen3_5_moe_text", 256, (*LINEAR_ATTENTION, *GATED_MIXTURE)),
    TinyModel(
        "qwen3_next",
        256,
        (*LINEAR_ATTENTION, *GATED_MIXTURE, ("decoder_sparse_step", 2)),
    ),
    TinyModel("gemma", 256, (("tie_word_embeddings", True),)),
    TinyModel("glm4_moe", 256, (*SIGMOID_EXPERTS, ("attention_bias", True), ("use_qk_norm", True))),
    TinyModel(
        "solar_open",
        256,
        (*SIGMOID_EXPERTS[1:], ("attention_bias", True), ("rope_parameters", SOLAR_YARN)),
    ),
    TinyModel(
        "exaone_moe",
        256,
        (
            ("first_k_dense_replace", 1),
            ("moe_intermediate_size", 96),
            ("n_group", 4),
            ("num_experts", 12),
            ("num_experts_per_tok", 5),
            ("num_shared_experts", 2),
            ("routed_scaling_factor", 1.5),
            ("sliding_window", 24),
            ("sliding_window_pattern", 2),
            ("topk_group", 2),
        ),
    ),
    TinyModel("dots1", 256, (*SIGMOID_EXPERTS, ("max_window_layers", 1), ("sliding_window", 24))),
    TinyModel(
        "ernie4_5_moe",
        256,
        (
            ("moe_intermediate_size", 96),
            ("moe_k", 3),
            ("moe_num_experts", 6),
            ("moe_num_shared_experts", 2),
        ),
    ),
    TinyModel("internlm3", 256, (("rope_parameters", DYNAMIC),)),
    TinyModel(
        "ministral",
        256,
        (
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("sliding_window", 24),
        ),
    ),
    TinyModel("apertus", 256, (("num_attention_heads", 6),)),
    TinyModel("helium", 256, (("attention_bias", True),)),
    TinyModel(
        "hunyuan_v1_moe",
        256,
        (("moe_topk", 3), ("num_experts", 6), ("rope_parameters", HUNYUAN_ROPE)),
    ),
    TinyModel(
        "deepseek_v2",
        256,
        (
            *SIGMOID_EXPERTS,
            *LATENTS,
            ("norm_topk_prob", False),
            ("q_lora_rank", None),
            ("rope_parameters", {**LATENT_YARN, "mscale": 0.707, "mscale_all_dim": 0.707}),
            ("topk_method", "group_limited_greedy"),
        ),
    ),
    TinyModel(
        "deepseek_v3",
        256,
        (
            *SIGMOID_EXPERTS,
            *LATENTS,
            ("attention_bias", True),
            ("rope_parameters", {**LATENT_YARN, "mscale": 1.0, "mscale_all_dim": 0.8}),
        ),
    ),
    TinyModel(
        "glm4_moe_lite",
        256,
        (*SIGMOID_EXPERTS[1:], *LATENTS, ("num_attention_heads", 6), ("num_key_value_heads", 6)),
    ),
    TinyModel(
        "llama4_text",
        256,
        (
            ("attention_chunk_size", 24),
            ("floor_scale", 40),
            ("interleave_moe_layer_step", 2),
            ("intermediate_size", 96),
            ("intermediate_size_mlp", 160),
            ("no_rope_layer_interval", 2),
            ("num_experts_per_tok", 2),
            ("num_local_experts", 6),
        ),
    ),
    TinyModel(
        "flex_olmo",
        256,
        (
            ("attention_bias", True),
            ("intermediate_size", 96),
            ("num_attention_heads", 6),
            ("num_experts", 6),
            ("num_experts_per_tok", 3),
        ),
    ),
    TinyModel("vaultgemma", 256, (("sliding_window", 24), ("query_pre_attn_scalar", 48))),
)
"""Models whose GGUF files, where llama.cpp has them, `support.gguf_files` does not write."""
