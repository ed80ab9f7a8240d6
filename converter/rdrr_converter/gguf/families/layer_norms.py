"""GgufMetadata of GGUF files of families with LayerNorm, beyond what all architectures share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rdrr_converter.gguf.metadata import GgufMetadata, Settings

COHERE2_PERIOD = 4
"""llama.cpp's period of layers without a window in Cohere 2, if the file states none."""


Settings = Settings


def _partial(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotated part of a head, which is the whole head if the file does not state it."""
    del read
    return {"partial_rotary_factor": config.get("partial_rotary_factor", 1.0)}


def _windowed(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    del config
    return {"sliding_window": read.get("attention.sliding_window")}


def _starcoder2(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the window; biases that exist are used although the flag is false."""
    return {**_windowed(read, config), "use_bias": False}


def _gptneox(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of the layers; the exact GELU of published models is not in the metadata."""
    parallel = read.get("use_parallel_residual")
    return _partial(read, config) | {
        "attention_bias": False,
        "use_parallel_residual": True if parallel is None else parallel,
    }


def _falcon(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of the layers, whose branches are parallel; the norms decide the rest."""
    del read, config
    return {"bias": False, "multi_query": False, "parallel_attn": True}


def _cohere(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    del config
    scale = read.number("logit_scale")
    return {"logit_scale": 1.0 if scale is None else scale}


def _cohere2(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    period = read.get("attention.sliding_window_pattern")
    return {
        **_cohere(read, config),
        **_windowed(read, config),
        "sliding_window_pattern": COHERE2_PERIOD if period is None else period,
    }


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "starcoder2": _starcoder2,
        "phi2": _partial,
        "falcon": _falcon,
        "gptneox": _gptneox,
        "stablelm": _partial,
        "nemotron": _partial,
        "command-r": _cohere,
        "cohere2": _cohere2,
    }
)
"""The keys of the configuration, by `general.architecture`."""
