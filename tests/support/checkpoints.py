"""Tiny random checkpoints of every architecture, built by transformers in the Hub's file layout.

Weights are sampled from the given generator; norms and biases are random too, so that a test fails
if one is forgotten.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VOCAB = 384
NORMS = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")
UNGATED = (
    "nemotron_h",
    "mamba2",
    "apertus",
    "arcee",
    "falcon",
    "gpt2",
    "gpt_neox",
    "nemotron",
    "opt",
    "phi",
    "starcoder2",
)
NOT_OF_FALCON = ("head_dim", "intermediate_size", "num_key_value_heads")
"""Usual keys that configurations of Falcon do not have."""


@dataclass(frozen=True)
class TinyModel:
    """One architecture with sizes small enough for a test.

    Attributes:
        model_type: transformers' name of the configuration.
        hidden: Hidden size, which is the inner dimension K of most matrix products.
        options: Further configuration keys.
        least_layers: Fewest layers that show all of the architecture's features.
        omitted: Usual configuration keys that the architecture lacks.
    """

    model_type: str
    hidden: int = 256
    options: tuple[tuple[str, Any], ...] = ()
    least_layers: int = 1
    omitted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model_type}-{self.hidden}"

    @property
    def can_fuse(self) -> bool:
        """Return whether gate and up can be fused: there is a gate, no bias and no expert."""
        if dict(self.options).get("mlp_bias"):
            return False
        return self.model_type not in UNGATED and not any(
            "expert" in key for key, _ in self.options
        )

    @property
    def neutral_norm(self) -> float:
        """Return the norm weight that scales by one: 0 for Gemma, whose norms multiply by 1 + w."""
        if self.model_type.startswith(("gemma4", "gemma3n")):
            return 1.0
        return 0.0 if "gemma" in self.model_type or self.model_type == "nemotron" else 1.0


LINEAR_ATTENTION = (
    ("full_attention_interval", 2),
    ("linear_conv_kernel_dim", 4),
    ("linear_key_head_dim", 24),
    ("linear_num_key_heads", 2),
    ("linear_num_value_heads", 6),
    ("linear_value_head_dim", 20),
)
GATED_MIXTURE = (
    ("moe_intermediate_size", 96),
    ("num_experts", 6),
    ("num_experts_per_tok", 2),
    ("shared_expert_intermediate_size", 160),
)


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
MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
CONVOLUTIONS = (
    ("conv_bias", True),
    ("conv_L_cache", 3),
    ("full_attn_idxs", [1, 3]),
    ("tie_word_embeddings", True),
)
DYNAMIC = {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 50000.0}
LATEST_MODELS = (
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
    TinyModel("qwen3_5_text", 256, LINEAR_ATTENTION),
    TinyModel("qwen3_5_moe_text", 256, (*LINEAR_ATTENTION, *GATED_MIXTURE)),
    TinyModel(
        "qwen3_next",
        256,
        (*LINEAR_ATTENTION, *GATED_MIXTURE, ("decoder_sparse_step", 2)),
    ),
    TinyModel("gemma", 256, (("tie_word_embeddings", True),)),
    TinyModel("glm4_moe", 256, (*SIGMOID_EXPERTS, ("attention_bias", True), ("use_qk_norm", True))),
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
    TinyModel("vaultgemma", 256, (("sliding_window", 24), ("query_pre_attn_scalar", 48))),
)
"""Models that this version does not export as GGUF."""
OLDER_MODELS = (
    TinyModel("starcoder2", 384, (("sliding_window", 24),)),
    TinyModel("phi", 256, (("head_dim", 80), ("partial_rotary_factor", 0.4))),
    TinyModel("gpt_neox", 320, (("num_key_value_heads", 4), ("head_dim", 80))),
    TinyModel("falcon", 256, (("multi_query", True), ("num_kv_heads", 1)), omitted=NOT_OF_FALCON),
    TinyModel(
        "falcon",
        320,
        (("new_decoder_architecture", True), ("num_kv_heads", 2)),
        omitted=NOT_OF_FALCON,
    ),
    TinyModel(
        "falcon",
        384,
        (
            ("bias", True),
            ("multi_query", False),
            ("num_kv_heads", 4),
            ("parallel_attn", False),
        ),
        omitted=NOT_OF_FALCON,
    ),
    TinyModel("gpt2", 256, (("num_key_value_heads", 4), ("n_inner", 512))),
    TinyModel("opt", 256, (("num_key_value_heads", 4), ("ffn_dim", 512))),
    TinyModel(
        "opt",
        512,
        (
            ("do_layer_norm_before", False),
            ("ffn_dim", 512),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 8),
            ("tie_word_embeddings", True),
            ("word_embed_proj_dim", 256),
        ),
    ),
    TinyModel("stablelm", 384, (("head_dim", 96), ("use_qkv_bias", True))),
    TinyModel("stablelm", 256, (("use_parallel_residual", True), ("qk_layernorm", True))),
    TinyModel("nemotron", 256, (("head_dim", 96),)),
    TinyModel("cohere", 256, (("use_qk_norm", True), ("tie_word_embeddings", True))),
    TinyModel(
        "cohere2",
        256,
        (("sliding_window", 24), ("sliding_window_pattern", 2), ("tie_word_embeddings", True)),
    ),
)
"""Models with LayerNorm: parallel branches, no gate, learned positions, transposed matrices."""
_GEMMA4 = (
    ("final_logit_softcapping", 30.0),
    ("global_head_dim", 96),
    ("sliding_window", 24),
    ("tie_word_embeddings", True),
)
GEMMA4_MODELS = (
    TinyModel(
        "gemma4_text",
        256,
        (
            *_GEMMA4,
            ("attention_k_eq_v", True),
            ("hidden_size_per_layer_input", 0),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("num_global_key_value_heads", 1),
        ),
    ),
    TinyModel(
        "gemma4_text",
        384,
        (
            *_GEMMA4,
            ("hidden_size_per_layer_input", 32),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("num_kv_shared_layers", 2),
            ("use_double_wide_mlp", True),
            ("vocab_size_per_layer_input", VOCAB),
        ),
        least_layers=4,
    ),
    TinyModel(
        "gemma4_text",
        320,
        (
            *_GEMMA4,
            ("enable_moe_block", True),
            ("hidden_size_per_layer_input", 0),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("moe_intermediate_size", 96),
            ("num_experts", 6),
            ("top_k_experts", 2),
        ),
    ),
    TinyModel(
        "gemma4_unified_text",
        320,
        (
            *_GEMMA4,
            ("attention_k_eq_v", True),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("num_global_key_value_heads", 1),
        ),
    ),
)
"""Gemma 4: dense with shared projections of keys and values; with inputs for each layer and shared
keys; with experts; the text model of those without towers."""
GEMMA3N_MODELS = (
    TinyModel(
        "gemma3n_text",
        256,
        (
            ("activation_sparsity_pattern", [0.6, 0.0, 0.9, 0.0]),
            ("altup_active_idx", 1),
            ("hidden_size_per_layer_input", 32),
            ("laurel_rank", 24),
            ("layer_types", ["sliding_attention", "full_attention"] * 2),
            ("num_kv_shared_layers", 2),
            ("sliding_window", 24),
            ("tie_word_embeddings", True),
            ("vocab_size_per_layer_input", 300),
        ),
        least_layers=4,
    ),
)
"""Gemma 3n, with fewer rows in the table of the layers than tokens in the vocabulary."""
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
"""Models with state spaces, alone or beside attention."""
ALL_MODELS = (
    TINY_MODELS
    + MORE_MODELS
    + LATEST_MODELS
    + OLDER_MODELS
    + GEMMA4_MODELS
    + GEMMA3N_MODELS
    + STATE_SPACE_MODELS
)


def make_model(tiny: TinyModel, rng: np.random.Generator, **overrides: Any) -> Any:
    """Build the model in transformers, in float32, with random weights.

    Args:
        tiny: The architecture and its sizes.
        rng: Source of the weights.
        overrides: Configuration keys that replace those of `tiny`.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {
        "vocab_size": VOCAB,
        "hidden_size": tiny.hidden,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        **dict(tiny.options),
        **overrides,
    }
    settings = {key: value for key, value in settings.items() if key not in tiny.omitted}
    settings["num_hidden_layers"] = max(settings["num_hidden_layers"], tiny.least_layers)
    if "layer_types" in settings:
        settings["layer_types"] = settings["layer_types"][: settings["num_hidden_layers"]]
    config = AutoConfig.for_model(tiny.model_type, **copy.deepcopy(settings))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model = model.to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _values(name, tuple(parameter.shape), rng, norm=tiny.neutral_norm)
            parameter.copy_(torch.from_numpy(values))
        for name, buffer in model.named_buffers():
            if name in model.state_dict():  # not computed, like the biases of sigmoid routers
                buffer.copy_(torch.from_numpy(_values(name, tuple(buffer.shape), rng, norm=0.0)))
    # Other buffers (rope frequencies) of a model built on the meta device are uninitialized.
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(model.state_dict())
    return fresh.eval()


def make_multimodal(kind: str, rng: np.random.Generator, **text: Any) -> Any:
    """Build a tiny text and image model in transformers, in float32, with random weights.

    Args:
        kind: `gemma3`, `mistral3`, `qwen2_5_vl` or `qwen3_vl`.
        rng: Source of the weights.
        text: Keys of the text model's configuration.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **text,
    }
    config = AutoConfig.for_model(kind, text_config=settings, vision_config=dict(_VISION[kind]))
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    norm = 0.0 if kind.startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _values(name, tuple(parameter.shape), rng, norm=norm)
            parameter.copy_(torch.from_numpy(values))
    return model.eval()


_SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_VISION: dict[str, dict[str, Any]] = {
    "gemma3": {"model_type": "siglip_vision_model", **_SIGLIP},
    "mistral3": {"model_type": "pixtral", **_SIGLIP},
    "qwen2_5_vl": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 64,
    },
    "qwen3_vl": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [0],
    },
}


def _values(
    name: str, shape: tuple[int, ...], rng: np.random.Generator, *, norm: float
) -> np.ndarray:
    if not shape:  # beta and eps of xIELU
        value = -1e-4 if name.endswith("eps") else 0.5  # the activation jumps by about eps at 0
        return np.array(value * (1.0 + 0.1 * rng.standard_normal()), np.float32)
    is_norm = ".norms." in name or name.endswith(NORMS)
    if name.endswith("sinks"):
        return rng.standard_normal(shape).astype(np.float32)
    is_norm |= name.endswith((*("_1.weight", "_2.weight"), "router.scale", "per_expert_scale"))
    if name.endswith("layer_scalar"):
        return (1.0 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    if len(shape) == 1 or is_norm:
        centre = norm if is_norm else 0.0
        return (centre + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    # A standard deviation of about 1/sqrt(K) keeps activations near 1 through the layers.
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def save_checkpoint(
    model: Any, folder: Path, *, dtype: str = "bfloat16", shard_bytes: int | None = None
) -> Path:
    """Save a model as a Hugging Face directory with a tokenizer.

    Args:
        model: A model that `make_model` returned.
        folder: Directory to create.
        dtype: Type of the weights: bfloat16, float16 or float32.
        shard_bytes: Largest size of a shard in bytes; None writes one file.
    """
    import torch

    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=shard_bytes or 2**40)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer of 259 entries, which fits every tiny vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def make_checkpoint(
    tiny: TinyModel,
    folder: Path,
    rng: np.random.Generator,
    *,
    dtype: str = "bfloat16",
    shard_bytes: int | None = None,
    **overrides: Any,
) -> Path:
    """Build a model with `make_model` and save it with `save_checkpoint`."""
    model = make_model(tiny, rng, **overrides)
    return save_checkpoint(model, folder, dtype=dtype, shard_bytes=shard_bytes)
