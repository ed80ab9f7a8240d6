"""Metadata of the families of `gguf.families.latest`, the inverse of the reading module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rdrr_manifests.package import Package

from rdrr_converter.export._gguf_states import rope_sections
from rdrr_converter.gguf.families.latest import ACTIVATION, XIELU

Entries = dict[str, Any]
Notes = tuple[str, ...]


def stated_parameters(package: Package) -> Entries:
    """Return the parameters of xIELU as metadata, a list with the value of each layer."""
    layers = range(package.manifest.architecture.num_layers)
    return {
        f"xielu.{name}": [
            float(package.dequantize(f"model.layers.{layer}{ACTIVATION}{name}").reshape(-1)[0])
            for layer in layers
        ]
        for name in XIELU
    }


def _hunyuan_moe(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the experts, which are as wide as the shared one."""
    width = config["intermediate_size"]
    return {
        "expert_feed_forward_length": width,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": width,
        "expert_used_count": config["moe_topk"],
    }, ()


def _llama4(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the experts, and the period of the layers that have them."""
    layers, sparse = config["num_hidden_layers"], config["moe_layers"]
    periods = range(1, layers + 1)
    fitting = (one for one in periods if sparse == list(range(one - 1, layers, one)))
    return {
        "expert_count": config["num_local_experts"],
        "expert_feed_forward_length": config["intermediate_size"],
        "feed_forward_length": config["intermediate_size_mlp"],
        "interleave_moe_layer_step": next(fitting, 1),
    }, ()


def _vision(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State how the pairs are divided between three positions, which are equal for text."""
    entries: Entries = {"rope.dimension_sections": rope_sections(config)}
    window = config.get("sliding_window")
    if not window:
        return entries, ()
    note = f"llama.cpp ignores the sliding window of {window} tokens for this architecture"
    return {**entries, "attention.sliding_window": window}, (note,)


KEYS_OF: Mapping[str, Callable[[Mapping[str, Any]], tuple[Entries, Notes]]] = MappingProxyType(
    {"hunyuan-moe": _hunyuan_moe, "llama4": _llama4, "qwen2vl": _vision, "qwen3vl": _vision}
)
"""Further metadata and notes, by `general.architecture`."""
