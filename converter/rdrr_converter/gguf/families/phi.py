"""Phi-3 and Phi-3.5 MoE in GGUF files."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import Config, Entries, Notes, Setting, fixed, size

_FACTOR, _CONTEXT = "rope.scaling.attn_factor", "rope.scaling.original_context_length"


def _read_window(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the sliding window (0 for none), and the context length before longrope scaling."""
    context = config.get("max_position_embeddings")
    return {
        "sliding_window": read.get("attention.sliding_window"),
        "original_max_position_embeddings": read.get(_CONTEXT) or context,
    }


def _write_window(config: Config) -> Entries:
    entries: Entries = {"attention.sliding_window": config.get("sliding_window") or 0}
    original = config.get("original_max_position_embeddings")
    return {**entries, _CONTEXT: original} if original else entries


def _note_factors(config: Config) -> Notes:
    if (config.get("rope_scaling") or {}).get("rope_type") != "longrope":
        return ()
    return (
        "llama.cpp chooses between the short and the long factors of longrope by its context "
        "length, not by the length of the sequence",
    )


_WINDOW = Setting(_read_window, _write_window, _note_factors)


def _usual_factor(context: int, original: int | None) -> float | None:
    """Return the factor that follows from the context lengths; None if there is no scaling."""
    if not original or not 1 < original < context:
        return None
    return sqrt(1.0 + log(context / original) / log(original))


def _accept_usual_factor(read: GgufMetadata, _: Config) -> dict[str, Any]:
    """Accept no other factor, because the format has no other for this model."""
    if read.get(_CONTEXT) is not None:
        usual = _usual_factor(read.size("context_length"), read.size(_CONTEXT))
        read.accept(_FACTOR, usual or 1.0)
    return {}


def _write_factor(config: Config) -> Entries:
    """State the factor that follows from the context lengths."""
    original = config.get("original_max_position_embeddings")
    factor = _usual_factor(config["max_position_embeddings"], original)
    return {} if factor is None else {_FACTOR: factor}


PHI3 = GgufArchitecture(
    "phi3",
    "Phi3ForCausalLM",
    layer_names.STACKED,
    settings=(_WINDOW, Setting(_accept_usual_factor, _write_factor)),
)


def _read_factor(read: GgufMetadata, _: Config) -> dict[str, Any]:
    """Return the factor that llama.cpp has for all contexts."""
    factor = read.number(_FACTOR)
    if factor is None:
        return {}
    # Seven digits undo the rounding to float32.
    factor = float(f"{factor:.7g}")
    return {"rope_scaling": {"short_mscale": factor, "long_mscale": factor}}


def _write_stated_factor(config: Config) -> Entries:
    scaling = config.get("rope_scaling") or {}
    if scaling.get("short_mscale") is None:
        return {}
    return {
        _FACTOR: scaling["short_mscale"],
        _CONTEXT: scaling["original_max_position_embeddings"],
    }


def _note_norms(_: Config) -> Notes:
    return (
        "llama.cpp computes RMSNorm where Phi-3.5 MoE has LayerNorm, and normalizes the weights of "
        "the two experts, so its results differ",
    )


PHIMOE = GgufArchitecture(
    "phimoe",
    "PhimoeForCausalLM",
    layer_names.MIXTRAL,
    flags=(
        ("attention_bias", ".q_proj.bias", True),
        ("lm_head_bias", "lm_head.bias", True),
    ),
    settings=(
        _WINDOW,
        Setting(_read_factor, _write_stated_factor, _note_norms),
        size("expert_count", "num_local_experts"),
        fixed(num_experts=None),
    ),
)
