"""Models with RMSNorm and attention in every layer, dense or with experts."""

from __future__ import annotations

from support.tiny_models.model import TinyModel

TINY_MODELS = (
    TinyModel("llama"),
    TinyModel("llama", 576),
    TinyModel("mistral", 256, (("sliding_window", 24),)),
    TinyModel("qwen2", 384),
    TinyModel("qwen3", 256, (("tie_word_embeddings", True),)),
    TinyModel(
        "gemma3_text",
        384,
        (("sliding_window", 24), ("query_pre_attn_scalar", 48), ("sliding_window_pattern", 2)),
    ),
)
"""Dense models: K = 256, 384 and 576, tied and untied heads, windows shorter than prompts."""

LONGROPE = {
    "type": "longrope",
    "short_factor": [round(1.0 + 0.01 * pair, 2) for pair in range(24)],
    "long_factor": [1.0 + 0.5 * pair for pair in range(24)],
}
OLMO3_ROPE = {
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 500000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
}
HUNYUAN_ROPE = {
    "rope_type": "dynamic",
    "alpha": 1000.0,
    "factor": 1.0,
    "rope_theta": 8002.502278161051,
}
"""With this base, the one that `alpha` stretches it to is 1e7, which a GGUF holds exactly."""
YARN_UNROUNDED = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
GRANITE_EXPERTS = (
    ("attention_multiplier", 0.09375),
    ("embedding_multiplier", 12.0),
    ("intermediate_size", 96),
    ("logits_scaling", 8.0),
    ("num_experts_per_tok", 3),
    ("num_local_experts", 6),
    ("residual_multiplier", 0.22),
)
MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
STATED_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 512,
    "short_factor": [round(1.0 + 0.01 * pair, 2) for pair in range(32)],
    "long_factor": [1.0 + 0.5 * pair for pair in range(32)],
    "short_mscale": 1.24,
    "long_mscale": 1.24,
}
MORE_MODELS = (
    TinyModel("gemma2", 256, (("sliding_window", 24), ("query_pre_attn_scalar", 48))),
    TinyModel("mixtral", 256, (("num_local_experts", 4), ("sliding_window", 24))),
    TinyModel(
        "phi3",
        256,
        (
            ("partial_rotary_factor", 0.75),
            ("original_max_position_embeddings", 100),
            ("rope_scaling", LONGROPE),
            ("sliding_window", 24),
        ),
    ),
    TinyModel(
        "phimoe",
        320,
        (
            ("attention_bias", True),
            ("lm_head_bias", True),
            ("num_local_experts", 6),
            ("rope_parameters", STATED_LONGROPE),
            ("router_jitter_noise", 0.3),
            ("sliding_window", 24),
        ),
    ),
    TinyModel(
        "qwen2_moe",
        256,
        (
            ("moe_intermediate_size", 96),
            ("mlp_only_layers", [1]),
            ("num_experts", 6),
            ("num_experts_per_tok", 3),
            ("shared_expert_intermediate_size", 160),
        ),
    ),
    TinyModel(
        "qwen3_moe",
        256,
        (
            ("decoder_sparse_step", 2),
            ("moe_intermediate_size", 96),
            ("norm_topk_prob", True),
            ("num_experts", 6),
            ("num_experts_per_tok", 2),
        ),
    ),
    TinyModel(
        "gpt_oss",
        288,
        (
            ("intermediate_size", 160),
            ("max_position_embeddings", 2048),
            ("num_experts_per_tok", 3),
            ("num_local_experts", 6),
            ("rope_parameters", YARN_UNROUNDED),
            ("sliding_window", 24),
            ("swiglu_limit", 0.75),
        ),
    ),
    TinyModel(
        "granite",
        256,
        (
            ("attention_multiplier", 0.09375),
            ("embedding_multiplier", 12.0),
            ("logits_scaling", 8.0),
            ("residual_multiplier", 0.22),
        ),
    ),
    TinyModel("granitemoe", 256, GRANITE_EXPERTS),
    TinyModel("granitemoeshared", 256, (*GRANITE_EXPERTS, ("shared_intermediate_size", 160))),
    TinyModel(
        "olmoe",
        256,
        (
            ("intermediate_size", 96),
            ("num_experts", 6),
            ("num_experts_per_tok", 3),
        ),
    ),
    TinyModel(
        "minimax_m2",
        256,
        (
            ("intermediate_size", 96),
            ("num_attention_heads", 6),
            ("num_experts_per_tok", 3),
            ("num_local_experts", 6),
            ("rotary_dim", 32),
        ),
    ),
    TinyModel("seed_oss"),
    TinyModel("smollm3", 256, (("no_rope_layer_interval", 2),)),
    TinyModel("glm", 256, (("partial_rotary_factor", 0.75),)),
    TinyModel("glm4", 256, (("num_attention_heads", 6),)),
    TinyModel("olmo2", 256, (("num_attention_heads", 6),)),
    TinyModel(
        "olmo3",
        256,
        (
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("rope_parameters", OLMO3_ROPE),
            ("sliding_window", 24),
        ),
    ),
    TinyModel("exaone4", 256, (("sliding_window", 24), ("sliding_window_pattern", 2))),
    TinyModel("ernie4_5", 256, (("tie_word_embeddings", True),)),
    TinyModel("hunyuan_v1_dense", 256, (("rope_parameters", HUNYUAN_ROPE),)),
    TinyModel("ministral3", 256, (("rope_parameters", MINISTRAL3_ROPE),)),
    TinyModel("olmo"),
    TinyModel("olmo", 384, (("clip_qkv", 0.75), ("head_dim", 96))),
    TinyModel("arcee", 384, (("mlp_bias", True),)),
)
"""Models for features that the dense ones lack: soft caps, stacks, longrope, experts, NoPE."""
