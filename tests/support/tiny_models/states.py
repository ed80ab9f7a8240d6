"""Models with state spaces, alone or beside attention."""

from __future__ import annotations

from support.tiny_models.model import TinyModel
from support.tiny_models.rms_norm import GRANITE_EXPERTS

GRANITE_HYBRID = (
    ("layer_types", ["linear_attention", "full_attention", "linear_attention", "linear_attention"]),
    ("mamba_d_head", 32),
    ("mamba_d_state", 40),
    ("mamba_expand", 1),
    ("mamba_n_groups", 2),
    ("mamba_n_heads", 8),
    ("shared_intermediate_size", 160),
)
FALCON_H1 = (
    ("mamba_d_head", 32),
    ("mamba_d_ssm", 192),
    ("mamba_d_state", 40),
    ("mamba_n_groups", 2),
    ("mamba_n_heads", 6),
    ("mlp_multipliers", [0.88, 0.22]),
    ("embedding_multiplier", 5.6),
    ("lm_head_multiplier", 0.04),
)
NEMOTRON_EXPERTS = (
    ("head_dim", 96),
    ("layers_block_type", ["linear_attention", "moe", "full_attention", "moe"]),
    ("mamba_head_dim", 32),
    ("mamba_num_heads", 12),
    ("moe_intermediate_size", 160),
    ("moe_shared_expert_intermediate_size", 192),
    ("n_groups", 2),
    ("n_routed_experts", 6),
    ("num_experts_per_tok", 2),
    ("routed_scaling_factor", 2.5),
    ("ssm_state_size", 40),
)
STATE_SPACE_MODELS = (
    TinyModel(
        "nemotron_h",
        256,
        (
            ("head_dim", 96),
            ("layers_block_type", ["linear_attention", "mlp", "full_attention", "mlp"]),
            ("mamba_head_dim", 32),
            ("mamba_num_heads", 12),
            ("mlp_bias", True),
            ("n_groups", 2),
            ("ssm_state_size", 40),
            ("use_bias", True),
        ),
        least_layers=4,
    ),
    TinyModel("nemotron_h", 384, NEMOTRON_EXPERTS, least_layers=4),
    TinyModel(
        "nemotron_h",
        320,
        (*NEMOTRON_EXPERTS, ("moe_latent_size", 96), ("norm_topk_prob", False)),
        least_layers=4,
    ),
    TinyModel(
        "falcon_h1",
        256,
        (
            *FALCON_H1,
            ("attention_in_multiplier", 0.5),
            ("attention_out_multiplier", 0.94),
            ("key_multiplier", 1.7),
            ("projectors_bias", True),
            ("ssm_in_multiplier", 2.0),
            ("ssm_multipliers", [0.35, 2.0, 1.3, 0.5, 1.7]),
            ("ssm_out_multiplier", 0.6),
        ),
    ),
    TinyModel(
        "falcon_h1",
        320,
        (
            *FALCON_H1,
            ("attention_bias", True),
            ("mamba_norm_before_gate", True),
            ("mamba_proj_bias", True),
            ("mamba_rms_norm", True),
            ("mlp_bias", True),
        ),
    ),
    TinyModel("granitemoehybrid", 256, (*GRANITE_EXPERTS, *GRANITE_HYBRID)),
    TinyModel(
        "granitemoehybrid",
        256,
        (
            *GRANITE_EXPERTS,
            *GRANITE_HYBRID,
            ("num_experts_per_tok", 0),
            ("num_local_experts", 0),
            ("position_embedding_type", "rope"),
        ),
    ),
    TinyModel(
        "mamba2",
        256,
        (
            ("head_dim", 32),
            ("n_groups", 2),
            ("num_heads", 16),
            ("state_size", 40),
            ("use_bias", True),
        ),
        omitted=(
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
        ),
    ),
)
