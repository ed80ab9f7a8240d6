"""Translation of a configuration into GGUF metadata, the inverse of `gguf.config`.

Settings for which llama.cpp has no key are found when the metadata is read back and compared.
Settings that llama.cpp ignores although it has a key for them are mentioned in notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log, sqrt
from types import MappingProxyType
from typing import Any

from rdrr_converter.architectures._rope_scaling import yarn_mscale
from rdrr_converter.architectures.layers import SLIDING
from rdrr_converter.export import (
    _gguf_gemma,
    _gguf_latest,
    _gguf_mixtures,
    _gguf_state_spaces,
    _gguf_states,
)
from rdrr_converter.export._gguf_layer_norms import KEYS_OF
from rdrr_converter.export._gguf_rms import exaone4, ministral3, olmo, olmo2
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.config import GRANITE_KEYS, KEYS

Entries = dict[str, Any]

_SCALINGS = ("linear", "yarn")
"""Types of rope scaling that have metadata keys; llama3 scaling is a tensor of divisors."""

LAYER_NORM_EPS = 1e-5
"""Epsilon of LayerNorm in torch, for configurations that state none."""

_GEMMA3_PERIOD = 6


def metadata(
    config: Mapping[str, Any], architecture: GgufArchitecture
) -> tuple[Entries, tuple[str, ...]]:
    """Build the metadata with architecture-prefixed keys, and notes on what llama.cpp ignores.

    Args:
        config: Content of `config.json` of the model.
        architecture: The GGUF conventions of the architecture.
    """
    entries: Entries = {
        key: config[ours] for key, ours in KEYS.items() if config.get(ours) is not None
    }
    head = config.get("head_dim") or 0  # latent attention states its sizes itself
    entries |= {
        "vocab_size": config["vocab_size"],
        "attention.value_length": head,
        "rope.dimension_count": int(head * (config.get("partial_rotary_factor") or 1.0)),
        **_scaling(config.get("rope_scaling") or {}),
    }
    if architecture.layer_norm:
        eps = entries.pop("attention.layer_norm_rms_epsilon", LAYER_NORM_EPS)
        entries["attention.layer_norm_epsilon"] = eps
    more, notes = _SPECIFIC_KEYS.get(architecture.name, _window)(config)
    return {f"{architecture.name}.{key}": value for key, value in (entries | more).items()}, notes


def _scaling(scaling: Mapping[str, Any]) -> Entries:
    kind = scaling.get("rope_type")
    if kind not in _SCALINGS:
        return {}
    stated = {
        "rope.scaling.type": kind,
        "rope.scaling.factor": float(scaling["factor"]),
        "rope.scaling.original_context_length": scaling.get("original_max_position_embeddings"),
        "rope.scaling.yarn_beta_fast": scaling.get("beta_fast"),
        "rope.scaling.yarn_beta_slow": scaling.get("beta_slow"),
    }
    if scaling.get("attention_factor") is not None:  # llama.cpp multiplies the usual one by this
        usual = yarn_mscale(float(scaling["factor"]), 1.0)
        stated["rope.scaling.attn_factor"] = scaling["attention_factor"] / usual
    return {key: value for key, value in stated.items() if value is not None}


def _window(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State the window, which llama.cpp ignores for most architectures."""
    window = config.get("sliding_window")
    if not window:
        return {}, ()
    note = f"llama.cpp ignores the sliding window of {window} tokens for this architecture"
    return {"attention.sliding_window": window}, (note,)


def _llama(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State Mixtral's number of experts, and which layers of Ministral have a window."""
    entries, notes = _window(config)
    if entries and config.get("layer_types"):
        slides = [kind == SLIDING for kind in config["layer_types"]]
        entries["attention.sliding_window_pattern"] = slides
    if config.get("num_local_experts"):
        entries["expert_count"] = config["num_local_experts"]
    return entries, notes


def _gemma2(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State the window; llama.cpp applies it to every other layer without further metadata."""
    window = config.get("sliding_window")
    return {"attention.sliding_window": window} if window else {}, ()


def _phi3(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State the window (0 for none) and LongRoPE's attention factor."""
    entries: Entries = {"attention.sliding_window": config.get("sliding_window") or 0}
    original = config.get("original_max_position_embeddings")
    if original:
        entries["rope.scaling.original_context_length"] = original
        factor = config["max_position_embeddings"] / original
        if factor > 1:
            entries["rope.scaling.attn_factor"] = sqrt(1.0 + log(factor) / log(original))
    if (config.get("rope_scaling") or {}).get("rope_type") != "longrope":
        return entries, ()
    return entries, (
        "llama.cpp chooses between the short and the long factors of longrope by its context "
        "length, not by the length of the sequence",
    )


def _phimoe(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State what Phi-3 has, with the stated parameters of LongRoPE, and the number of experts."""
    entries, notes = _phi3(config)
    entries.pop("rope.scaling.attn_factor", None)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("short_mscale") is not None:
        original = scaling["original_max_position_embeddings"]
        entries["rope.scaling.attn_factor"] = scaling["short_mscale"]
        entries["rope.scaling.original_context_length"] = original
    note = (
        "llama.cpp computes RMSNorm where Phi-3.5 MoE has LayerNorm, and normalizes the weights of "
        "the two experts, so its results differ"
    )
    return {**entries, "expert_count": config["num_local_experts"]}, (*notes, note)


def _granite(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State Granite's factors, and the sizes of its experts."""
    entries: Entries = {key: float(config[ours]) for key, ours in GRANITE_KEYS.items()}
    if config.get("num_local_experts"):
        entries["expert_count"] = config["num_local_experts"]
    if config.get("shared_intermediate_size"):
        entries["expert_shared_feed_forward_length"] = config["shared_intermediate_size"]
    return entries, ()


def _granite_hybrid(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State Granite's factors, and the state spaces of its hybrids."""
    (factors, notes), (entries, more) = _granite(config), _gguf_state_spaces.granite(config)
    return {**factors, **entries}, (*notes, *more)


def _gpt_oss(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    """State the window, which llama.cpp applies to every other layer, and the experts."""
    is_scaled = (config.get("rope_scaling") or {}).get("rope_type") == "yarn"
    return {
        "attention.sliding_window": config["sliding_window"] or 0,
        "expert_count": config["num_local_experts"],
        "expert_feed_forward_length": config["intermediate_size"],
    }, ("llama.cpp rounds the ends of YaRN's ramp to whole pairs",) if is_scaled else ()


def _gemma3(config: Mapping[str, Any]) -> tuple[Entries, tuple[str, ...]]:
    entries: Entries = {"rope.freq_base_swa": float(config["rope_local_base_freq"])}
    notes: list[str] = []
    if config.get("sliding_window"):
        entries["attention.sliding_window"] = config["sliding_window"]
    types = config.get("layer_types") or [SLIDING] * config["num_hidden_layers"]
    slides = [kind == SLIDING for kind in types]
    period = _period(slides)
    if period is None:
        entries["attention.sliding_window_pattern"] = slides
        notes.append(
            "layers with a sliding window follow no period: llama.cpp may refuse the list of them"
        )
    elif period != _GEMMA3_PERIOD:
        entries["attention.sliding_window_pattern"] = period
    scalar = config["query_pre_attn_scalar"]
    if scalar != config["head_dim"]:
        entries["attention.scale"] = float(scalar) ** -0.5
        notes.append(
            "llama.cpp computes the attention scale of Gemma 3 from the head dimension and "
            f"ignores query_pre_attn_scalar {scalar}"
        )
    return entries, tuple(notes)


def _period(slides: list[bool]) -> int | None:
    """Return n if every n-th layer has no window and all others have one, else None."""
    periods: tuple[int, ...] = (_GEMMA3_PERIOD, *range(1, len(slides) + 1))
    for period in periods:
        if all(one == ((layer + 1) % period != 0) for layer, one in enumerate(slides)):
            return period
    return None


_SPECIFIC_KEYS: Mapping[str, Callable[[Mapping[str, Any]], tuple[Entries, tuple[str, ...]]]] = (
    MappingProxyType(
        {
            "llama": _llama,
            "gemma2": _gemma2,
            "gemma3": _gemma3,
            "gemma-embedding": _gemma3,
            "gpt-oss": _gpt_oss,
            "granite": _granite,
            "granitemoe": _granite,
            "phi3": _phi3,
            "phimoe": _phimoe,
            "olmo2": olmo2,
            "exaone4": exaone4,
            "mistral3": ministral3,
            "olmo": olmo,
            **KEYS_OF,
            **_gguf_mixtures.KEYS_OF,
            **_gguf_states.KEYS_OF,
            **_gguf_state_spaces.KEYS_OF,
            "granitehybrid": _granite_hybrid,
            **_gguf_gemma.KEYS_OF,
            **_gguf_latest.KEYS_OF,
        }
    )
)
