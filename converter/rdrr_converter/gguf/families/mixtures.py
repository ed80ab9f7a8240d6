"""What llama.cpp's metadata means for mixtures: DeepSeek, GLM, dots, Ernie and MiniMax.

Each function returns configuration keys of Hugging Face. Keys that have another meaning here than
for most architectures are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rdrr_converter.gguf.families.rms import exaone4
from rdrr_converter.gguf.metadata import GgufMetadata, Settings

SCORES: Mapping[int, str] = MappingProxyType({1: "softmax", 2: "sigmoid"})
"""Functions of the router, by their numbers in `expert_gating_func`."""

GLM_LITE_VOCABULARY = 154880
"""Vocabulary by which llama.cpp knows GLM 4.7 Flash, if the file does not state the router."""


def _shared(read: GgufMetadata, *, default: str) -> dict[str, Any]:
    """Return the keys that DeepSeek's mixtures and similar ones have."""
    further = read.get("nextn_predict_layers") or 0
    gating = read.get("expert_gating_func")
    return {
        "num_experts": None,
        "shared_expert_intermediate_size": None,
        "n_routed_experts": read.size("expert_count"),
        "n_shared_experts": read.size("expert_shared_count"),
        "first_k_dense_replace": read.get("leading_dense_block_count") or 0,
        "routed_scaling_factor": read.number("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(read.get("expert_weights_norm")),
        "n_group": read.get("expert_group_count") or 1,
        "topk_group": read.get("expert_group_used_count") or 1,
        "scoring_func": SCORES.get(gating, gating) if gating else default,
        "num_hidden_layers": read.size("block_count") - further,
        "num_nextn_predict_layers": further,
    }


def glm4moe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of GLM 4.5 and its successors, which rotate a part of each head."""
    size = config["head_dim"]
    rotated = read.get("rope.dimension_count") or size
    return {**_shared(read, default="sigmoid"), "partial_rotary_factor": rotated / size}


def dots1(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of dots.llm1, for which llama.cpp has no windows."""
    del config
    keys = _shared(read, default="sigmoid")
    return {**keys, "sliding_window": None, "num_nextn_predict_layers": None}


def exaone_moe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of EXAONE MoE, whose layers alternate as EXAONE 4's do."""
    shared = _shared(read, default="sigmoid")
    renamed = {
        "num_experts": shared.pop("n_routed_experts"),
        "num_shared_experts": shared.pop("n_shared_experts"),
    }
    return {**shared, **renamed, **exaone4(read, config)}


def ernie4_5_moe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of Ernie 4.5, where every n-th layer has experts from a first one on."""
    return {
        "num_experts": None,
        "shared_expert_intermediate_size": None,
        "num_experts_per_tok": None,
        "moe_k": config["num_experts_per_tok"],
        "moe_num_experts": read.size("expert_count"),
        "moe_num_shared_experts": read.size("expert_shared_count"),
        "moe_layer_start_index": read.get("leading_dense_block_count") or 0,
        "moe_layer_interval": read.get("interleave_moe_layer_step") or 1,
    }


def minimax_m2(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of MiniMax M2, all of whose layers have experts."""
    del config
    gating = read.get("expert_gating_func")
    return {
        "num_experts": None,
        "moe_intermediate_size": None,
        "intermediate_size": read.size("expert_feed_forward_length"),
        "num_local_experts": read.size("expert_count"),
        "scoring_func": SCORES.get(gating, gating) if gating else "sigmoid",
    }


def deepseek2(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of DeepSeek V2 and V3, which differ in their router.

    Files with `key_length_mla` describe attention as it is computed, with one head of latents.
    """
    lite = config["vocab_size"] == GLM_LITE_VOCABULARY
    shared = _shared(read, default="sigmoid" if lite else "softmax")
    is_latent = read.get("attention.key_length_mla") is not None
    ending = "_mla" if is_latent else ""
    rope = read.size("rope.dimension_count")
    keys = {
        **shared,
        "head_dim": None,
        "partial_rotary_factor": None,
        "num_key_value_heads": read.size("attention.head_count"),
        "kv_lora_rank": read.size("attention.kv_lora_rank"),
        "q_lora_rank": read.get("attention.q_lora_rank"),
        "qk_nope_head_dim": read.size(f"attention.key_length{ending}") - rope,
        "qk_rope_head_dim": rope,
        "v_head_dim": read.size(f"attention.value_length{ending}"),
        "rope_scaling": _scaling(read, config.get("rope_scaling")),
    }
    if shared["scoring_func"] == "sigmoid":
        return {**keys, "architectures": ["DeepseekV3ForCausalLM"]}
    grouped = shared["n_group"] > 1
    method = "group_limited_greedy" if grouped else "greedy"
    return {**keys, "topk_method": method, "num_nextn_predict_layers": None}


def _scaling(read: GgufMetadata, scaling: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the scaling with its corrections: cosines and sines have none in llama.cpp."""
    if not scaling or scaling.get("rope_type") != "yarn":
        return None if scaling is None else dict(scaling)
    correction = read.number("rope.scaling.yarn_log_multiplier")
    if correction is None:
        return {**scaling, "attention_factor": 1.0}
    # Six digits undo the rounding to float32.
    scale = float(f"{10 * correction:.6g}")
    return {**scaling, "mscale": scale, "mscale_all_dim": scale}


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "deepseek2": deepseek2,
        "dots1": dots1,
        "ernie4_5-moe": ernie4_5_moe,
        "exaone-moe": exaone_moe,
        "glm4moe": glm4moe,
        "minimax-m2": minimax_m2,
    }
)
"""The functions by the names of their architectures in llama.cpp."""
