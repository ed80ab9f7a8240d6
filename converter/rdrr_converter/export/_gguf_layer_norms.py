"""Metadata that llama.cpp has for families with LayerNorm, the inverse of the reading module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import ConversionError

from rdrr_converter.architectures.layers import FULL
from rdrr_converter.gguf.families.layer_norms import COHERE2_PERIOD

Entries = dict[str, Any]
LAYERS_WITH_QUERY_NORM = 64
Keys = Callable[[Mapping[str, Any]], tuple[Entries, tuple[str, ...]]]


def _parallel(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    return {"use_parallel_residual": config["use_parallel_residual"]}, ()


def _gptneox(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State the form of the layers, and note which GELU llama.cpp computes."""
    entries, _ = _parallel(config)
    return entries, ("llama.cpp computes the tanh form of GELU for this architecture",)


def _falcon(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State the order of the stacked rows, and note which GELU llama.cpp computes."""
    if config["bias"]:
        raise ConversionError(
            "llama.cpp reads no biases of Falcon's projections",
            hint="export it `to` safetensors",
        )
    note = "llama.cpp computes the tanh form of GELU for this architecture"
    return {"tensor_data_layout": "jploski"}, (note,)


def _cohere(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    return {"logit_scale": float(config["logit_scale"]), "rope.scaling.type": "none"}, ()


def _command_r(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State the scale of the logits, and note which models llama.cpp expects norms in."""
    entries, notes = _cohere(config)
    if bool(config["use_qk_norm"]) == (config["num_hidden_layers"] >= LAYERS_WITH_QUERY_NORM):
        return entries, notes
    return entries, (
        "llama.cpp refuses the model: it expects norms on queries and keys in models with "
        f"{LAYERS_WITH_QUERY_NORM} layers or more, and only there",
    )


def _cohere2(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State the window, and the period of the layers without one if it is unusual."""
    entries, _ = _cohere(config)
    entries["attention.sliding_window"] = config["sliding_window"]
    types = config.get("layer_types") or ()
    period = types.index(FULL) + 1 if FULL in types else COHERE2_PERIOD
    if period == COHERE2_PERIOD:
        return entries, ()
    entries["attention.sliding_window_pattern"] = period
    return entries, (f"llama.cpp assumes a period of {COHERE2_PERIOD} layers, not {period}",)


KEYS_OF: Mapping[str, Keys] = MappingProxyType(
    {
        "falcon": _falcon,
        "gptneox": _gptneox,
        "stablelm": _parallel,
        "command-r": _command_r,
        "cohere2": _cohere2,
    }
)
"""Further metadata and notes, by `general.architecture`."""
