"""Metadata of OLMo, EXAONE 4 and Ministral 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdrr_converter.architectures.layers import SLIDING

_EXAONE4_LAYERS = 64


def ministral3(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """State the scale of the queries by position, and the attention factor as llama.cpp does."""
    scaling = config.get("rope_scaling") or {}
    beta, factor = scaling.get("llama_4_scaling_beta"), scaling.get("attention_factor")
    entries: dict[str, Any] = {}
    if beta is not None:
        length = scaling["original_max_position_embeddings"]
        entries |= {"attention.temperature_scale": beta, "attention.temperature_length": length}
    if factor == 1.0:
        entries |= {"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": 1.0}
    return entries, ()


def olmo(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """State the limit of queries, keys and values."""
    limit = config.get("clip_qkv")
    return {} if limit is None else {"attention.clamp_kqv": float(limit)}, ()


def windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """State the window and which layers have it; nothing if there is no window."""
    window, layers = config.get("sliding_window"), config["num_hidden_layers"]
    if not window:
        return {}
    types = config.get("layer_types") or [SLIDING] * layers
    return {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [kind == SLIDING for kind in types],
    }


def olmo2(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """State which layers of an OLMo 3 have a window."""
    return windows(config), ()


def exaone4(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """State which layers have a window, which llama.cpp reads of models of one size only."""
    entries = windows(config)
    if not entries or config["num_hidden_layers"] == _EXAONE4_LAYERS:
        return entries, ()
    return entries, (
        f"llama.cpp gives EXAONE 4 windows only if it has {_EXAONE4_LAYERS} layers, whatever the "
        "file states",
    )
