"""llama.cpp's names of tensors and what Hugging Face calls them, family by family.

Each table maps the name within a layer, or outside of the layers, without its ending. Which
architecture has which tables is stated in `rdrr_converter.gguf.architectures`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rdrr_converter.gguf.families import gemma, state_spaces, states

OUTSIDE: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "position_embd": "model.embed_positions",
        "output_norm": "model.norm",
        "output": "lm_head",
        **gemma.OUTSIDE,
    }
)
LAYER: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
FOUR_NORMS: Mapping[str, str] = MappingProxyType(
    {
        **LAYER,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
GEMMA4: Mapping[str, str] = MappingProxyType({**FOUR_NORMS, **gemma.LAYER})
MIXTRAL: Mapping[str, str] = MappingProxyType(
    {
        **LAYER,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.w1",
        "ffn_up_exps": "block_sparse_moe.experts.w3",
        "ffn_down_exps": "block_sparse_moe.experts.w2",
    }
)
MINIMAX: Mapping[str, str] = MappingProxyType(
    {**MIXTRAL, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"}
)
EXPERTS: Mapping[str, str] = MappingProxyType(
    {
        **LAYER,
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_exps": "mlp.experts.gate_proj",
        "ffn_up_exps": "mlp.experts.up_proj",
        "ffn_down_exps": "mlp.experts.down_proj",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
    }
)
STACKED: Mapping[str, str] = MappingProxyType(
    {**LAYER, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
)
SEED_OSS: Mapping[str, str] = MappingProxyType(
    {"post_attention_norm": "post_attention_layernorm", **LAYER}
)
GRANITE: Mapping[str, str] = MappingProxyType(
    {
        **EXPERTS,
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_gate_exps": "block_sparse_moe.experts.gate_proj",
        "ffn_up_exps": "block_sparse_moe.experts.up_proj",
        "ffn_down_exps": "block_sparse_moe.experts.down_proj",
    }
)
GPT_OSS: Mapping[str, str] = MappingProxyType(
    {
        **SEED_OSS,
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        "ffn_gate_exps": "mlp.experts.gate_proj",
        "ffn_up_exps": "mlp.experts.up_proj",
        "ffn_down_exps": "mlp.experts.down_proj",
    }
)
GLM4: Mapping[str, str] = MappingProxyType(
    {
        **STACKED,
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    }
)
POST_NORMS: Mapping[str, str] = MappingProxyType(
    {
        **{theirs: ours for theirs, ours in LAYER.items() if not theirs.endswith("_norm")},
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
HUNYUAN: Mapping[str, str] = MappingProxyType(
    {
        **LAYER,
        "attn_q_norm": "self_attn.query_layernorm",
        "attn_k_norm": "self_attn.key_layernorm",
    }
)
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ONE_STACK: Mapping[str, str] = MappingProxyType(
    {
        **{theirs: ours for theirs, ours in LAYER.items() if ours not in PROJECTIONS},
        "attn_qkv": "self_attn.qkv_proj",
    }
)
FALCON: Mapping[str, str] = MappingProxyType(
    {theirs: ours for theirs, ours in ONE_STACK.items() if theirs != "ffn_norm"}
)
FALCON_TWO_NORMS: Mapping[str, str] = MappingProxyType(
    {**FALCON, "attn_norm": "post_attention_layernorm", "attn_norm_2": "input_layernorm"}
)
PHI2: Mapping[str, str] = MappingProxyType({**LAYER, "attn_qkv": "self_attn.qkv_proj"})
NEXTN: Mapping[str, str] = MappingProxyType(
    {
        f"nextn.{theirs}": ours
        for theirs, ours in {
            "eh_proj": "eh_proj",
            "embed_tokens": "embed_tokens",
            "enorm": "enorm",
            "hnorm": "hnorm",
            "shared_head_head": "shared_head.head",
            "shared_head_norm": "shared_head.norm",
        }.items()
    }
)
"""Modules of layers that only predict further tokens."""
SHARED_EXPERTS: Mapping[str, str] = MappingProxyType(
    {
        **LAYER,
        **NEXTN,
        "ffn_gate_inp": "mlp.gate",
        "exp_probs_b": "mlp.gate.e_score_correction_bias",
        "ffn_gate_exps": "mlp.experts.gate_proj",
        "ffn_up_exps": "mlp.experts.up_proj",
        "ffn_down_exps": "mlp.experts.down_proj",
        "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj",
    }
)
GLM4_MOE: Mapping[str, str] = MappingProxyType(
    {"post_attention_norm": "post_attention_layernorm", **SHARED_EXPERTS}
)
ERNIE_MOE: Mapping[str, str] = MappingProxyType(
    {**SHARED_EXPERTS, "exp_probs_b": "mlp.moe_statics.e_score_correction_bias"}
)
DEEPSEEK: Mapping[str, str] = MappingProxyType(
    {
        **SHARED_EXPERTS,
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
    }
)
QWEN35: Mapping[str, str] = MappingProxyType({**states.LINEAR_ATTENTION, **EXPERTS, **NEXTN})
QWEN3_NEXT: Mapping[str, str] = MappingProxyType({**states.JOINED_GATES, **EXPERTS, **NEXTN})
LFM2: Mapping[str, str] = MappingProxyType({**SHARED_EXPERTS, **states.SHORT_CONVOLUTION})
LFM2_OUTSIDE: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "token_embd_norm": "model.norm",
        "output": "lm_head",
    }
)
QUERIES_KEYS = ("q_proj", "k_proj")
HYBRID: Mapping[str, str] = MappingProxyType({**LAYER, **state_spaces.MIXER})
NEMOTRON_EXPERTS: Mapping[str, str] = MappingProxyType(
    {
        **SHARED_EXPERTS,
        **state_spaces.MIXER,
        "ffn_latent_down": "mlp.fc1_latent_proj",
        "ffn_latent_up": "mlp.fc2_latent_proj",
    }
)
GRANITE_HYBRID: Mapping[str, str] = MappingProxyType({**GRANITE, **state_spaces.MIXER})
NO_FORMS: Mapping[str, str] = MappingProxyType({})
WHOLE: Mapping[str, str] = MappingProxyType(
    {
        "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_inp.scale": "router.scale",
        "ssm_a": "linear_attn.A_log",
        "ssm_dt.bias": "linear_attn.dt_bias",
    }
)
OF_STATE_SPACES: Mapping[str, str] = MappingProxyType(
    {
        theirs: ours
        for theirs, ours in state_spaces.MIXER.items()
        if ours in state_spaces.WITHOUT_ENDING
    }
)
OF_FALCON_H1: Mapping[str, str] = MappingProxyType(
    {**OF_STATE_SPACES, "ffn_norm": "post_attention_layernorm.weight"}
)
"""Tensors of Falcon-H1 without an ending in llama.cpp."""

QWEN_FORMS: Mapping[str, str] = MappingProxyType(
    {
        "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
        "ssm_in": "linear_attn.in_proj_qkvz",
    }
)
