"""llama.cpp's names of tensors and what Hugging Face calls them, where several families share them.

Each table maps the name within a layer, or outside of the layers, without its ending. Which
architecture has which tables is stated in `rdrr_converter.gguf.architectures` and in the modules of
`families`, which have the other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OUTSIDE: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "position_embd": "model.embed_positions",
        "output_norm": "model.norm",
        "output": "lm_head",
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
        "altup_proj": "model.altup_projections",
        "altup_unembd_proj": "model.altup_unembed_projections",
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


def experts(routed: str, shared: str | None = None) -> dict[str, str]:
    """Return the names of the projections of experts, given those of their modules."""
    kinds = [("exps", routed)] + ([] if shared is None else [("shexp", shared)])
    return {
        f"ffn_{part}_{kind}": f"{module}.{part}_proj"
        for kind, module in kinds
        for part in ("gate", "up", "down")
    }


FOUR_NORMS: Mapping[str, str] = MappingProxyType(
    {
        **LAYER,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
MIXTRAL: Mapping[str, str] = MappingProxyType(
    {
        **LAYER,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.w1",
        "ffn_up_exps": "block_sparse_moe.experts.w3",
        "ffn_down_exps": "block_sparse_moe.experts.w2",
    }
)
EXPERTS: Mapping[str, str] = MappingProxyType(
    {
        **LAYER,
        "ffn_gate_inp": "mlp.gate",
        **experts("mlp.experts", "mlp.shared_expert"),
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
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
        **experts("block_sparse_moe.experts"),
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
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ONE_STACK: Mapping[str, str] = MappingProxyType(
    {
        **{theirs: ours for theirs, ours in LAYER.items() if ours not in PROJECTIONS},
        "attn_qkv": "self_attn.qkv_proj",
    }
)
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
        **experts("mlp.experts", "mlp.shared_experts"),
    }
)
QUERIES_KEYS = ("q_proj", "k_proj")
NO_FORMS: Mapping[str, str] = MappingProxyType({})
WHOLE: Mapping[str, str] = MappingProxyType(
    {
        "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_inp.scale": "router.scale",
        "ssm_a": "linear_attn.A_log",
        "ssm_dt.bias": "linear_attn.dt_bias",
    }
)
