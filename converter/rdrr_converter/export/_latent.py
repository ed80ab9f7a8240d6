"""Keys of a `config.json` for multi-head latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from rdrr_manifests.models import Manifest

_SIZES = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def with_latents(
    config: Mapping[str, Any], manifest: Manifest, known: Mapping[str, object]
) -> dict[str, Any]:
    """Return a configuration with the keys of latent attention, if the model has it.

    Args:
        config: The configuration so far.
        manifest: Manifest of the package.
        known: Keys that the architecture has.
    """
    sizes, rope = manifest.architecture, manifest.inference.rope
    if sizes.kv_lora_rank is None:
        return dict(config)
    left_out = ("head_dim", "query_pre_attn_scalar")  # they follow from the keys below
    keys = {key: value for key, value in config.items() if key not in left_out}
    keys |= {key: getattr(sizes, key) for key in _SIZES}
    if "rope_interleave" in known:
        keys["rope_interleave"] = rope.rope_interleaved
    scalar = manifest.inference.attention.query_pre_attn_scalar
    factor, correction = rope.rope_scaling_factor, (sizes.head_dim / scalar) ** 0.25
    if rope.rope_scaling_type == "yarn" and factor > 1:
        keys["rope_scaling"] = _with_corrections(keys["rope_scaling"], factor, correction)
    return keys


def _with_corrections(
    scaling: Mapping[str, Any], factor: float, correction: float
) -> dict[str, Any]:
    """State `mscale` and `mscale_all_dim`, from which readers compute both corrections.

    Args:
        scaling: `rope_scaling`, with the attention factor if it is not the usual one.
        factor: Scaling factor.
        correction: Square root of the correction of the softmax scale.
    """
    all_dim = _rounded((correction - 1.0) / (0.1 * log(factor)))
    if not all_dim:
        return dict(scaling)
    attention = scaling.get("attention_factor", 0.1 * log(factor) + 1.0)
    scale = _rounded((attention * correction - 1.0) / (0.1 * log(factor)))
    remaining = {key: value for key, value in scaling.items() if key != "attention_factor"}
    return {**remaining, "mscale": scale, "mscale_all_dim": all_dim}


def _rounded(value: float) -> float:
    """Return a number without the rounding errors of the way back to it."""
    return float(f"{value:.9g}") if abs(value) > 1e-9 else 0.0
