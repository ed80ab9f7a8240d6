"""Metadata of mixtures beyond Qwen's and Mixtral's, the inverse of `gguf.families.mixtures`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rdrr_converter.export._gguf_rms import windows
from rdrr_converter.gguf.families.mixtures import SCORES

Entries = dict[str, Any]
Keys = tuple[Entries, tuple[str, ...]]

_GATING: Mapping[str, int] = MappingProxyType({name: number for number, name in SCORES.items()})
_LITE_LAYERS = (26, 27)
"""Layers of models like DeepSeek V2 Lite, by which llama.cpp knows that queries have no latents."""


def _shared(config: Mapping[str, Any], scores: str) -> Entries:
    return {
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_gating_func": _GATING[scores],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }


def _sigmoid(config: Mapping[str, Any]) -> Keys:
    """State the experts of GLM 4.5."""
    return _shared(config, "sigmoid"), ()


def _dots(config: Mapping[str, Any]) -> Keys:
    """State the experts of dots.llm1, whose key-value heads llama.cpp takes to be all heads."""
    entries, notes = _sigmoid(config)
    if config["num_key_value_heads"] == config["num_attention_heads"]:
        return entries, notes
    return entries, ("llama.cpp refuses a dots.llm1 with fewer key-value heads than heads",)


def _exaone(config: Mapping[str, Any]) -> Keys:
    """State the experts of EXAONE MoE, and which layers have a window."""
    count = config["num_shared_experts"]
    routed = {"n_routed_experts": config["num_experts"], "n_shared_experts": count}
    return {
        **windows(config),
        **_shared({**config, **routed}, "sigmoid"),
        "expert_shared_feed_forward_length": config["moe_intermediate_size"] * count,
    }, ()


def _ernie(config: Mapping[str, Any]) -> Keys:
    """State the experts of Ernie 4.5."""
    width, count = config["moe_intermediate_size"], config["moe_num_shared_experts"]
    return {
        "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_k"],
        "expert_shared_count": count,
        "expert_shared_feed_forward_length": width * count,
        "leading_dense_block_count": config["moe_layer_start_index"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
    }, ()


def _minimax(config: Mapping[str, Any]) -> Keys:
    """State the experts of MiniMax M2, whose weights llama.cpp always normalizes."""
    return {
        "expert_count": config["num_local_experts"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_gating_func": _GATING["sigmoid"],
    }, ()


def _deepseek(config: Mapping[str, Any]) -> Keys:
    """State the sizes of latent attention, in the form in which one tensor makes keys and values.

    llama.cpp expands keys and values of such a file for its cache. The blocks of the tensor are
    copied, which the newer form with a transposed part does not allow.
    """
    is_sigmoid = config["architectures"] != ["DeepseekV2ForCausalLM"]
    if "mlp_layer_types" in config:
        config = {**config, "first_k_dense_replace": config["mlp_layer_types"].index("sparse")}
    key, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    entries = {
        **_shared(config, "sigmoid" if is_sigmoid else "softmax"),
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": key + rope,
        "attention.value_length": config["v_head_dim"],
        "rope.dimension_count": rope,
    }
    notes = ["llama.cpp caches the keys and values of this file expanded, not as latents"]
    if config["q_lora_rank"] is not None:
        entries["attention.q_lora_rank"] = config["q_lora_rank"]
    elif config["num_hidden_layers"] not in _LITE_LAYERS:
        notes.append(
            "llama.cpp refuses a model whose queries have no latents, unless it has "
            f"{' or '.join(map(str, _LITE_LAYERS))} layers"
        )
    correction = (config.get("rope_scaling") or {}).get("mscale_all_dim")
    if correction:
        entries["rope.scaling.yarn_log_multiplier"] = 0.1 * correction
    if config["n_group"] > 1 and not is_sigmoid:
        notes.append("llama.cpp selects groups by their two best experts, not by the best one")
    return entries, tuple(notes)


KEYS_OF: Mapping[str, Callable[[Mapping[str, Any]], Keys]] = MappingProxyType(
    {
        "deepseek2": _deepseek,
        "dots1": _dots,
        "ernie4_5-moe": _ernie,
        "exaone-moe": _exaone,
        "glm4moe": _sigmoid,
        "minimax-m2": _minimax,
    }
)
"""The functions by the names of their architectures in llama.cpp."""
