"""Tables of cosines and sines for rotary position embedding (rope), computed on the host.

The sin and cos of WGSL are accurate only near zero, so no kernel evaluates them. Angles are
computed in float64, and the table is rounded to float32 once.

Formulas: Su et al. 2021 (arXiv 2104.09864); linear scaling (position interpolation, 2306.15595);
yarn (2309.00071); longrope (2402.13753); llama3 as published with Llama 3.1.
"""

from __future__ import annotations

from math import ceil, floor, log, pi, sqrt

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ManifestError
from rdrr_manifests.graph import RopeSpec

POSITIONS = 1 << 14
"""Positions computed at a time: a million positions in float64 would take gigabytes."""

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]


def rope_table(spec: RopeSpec, context: int, more: int = 0) -> F32:
    """Return the cosines and sines of all positions.

    Args:
        spec: One of `Graph.ropes`.
        context: Number of positions.
        more: Number of further rows, which are zero.

    Returns:
        float32 [context + more, rotary_dim / 2, 2]; the last axis is (cos, sin), scaled by the
        attention factor of yarn and longrope.

    Raises:
        ManifestError: The rope scaling lacks one of its parameters.
    """
    radians, factor = frequencies(spec, context), attention_factor(spec, context)
    table = np.zeros((context + more, len(radians), 2), np.float32)
    for first in range(0, context, POSITIONS):
        part = table[first : min(first + POSITIONS, context)]
        angles = np.arange(first, first + len(part), dtype=np.float64)[:, None] * radians
        part[..., 0] = np.cos(angles) * factor
        part[..., 1] = np.sin(angles) * factor
    return table


def rope_rows(spec: RopeSpec, context: int, positions: npt.NDArray[np.int64]) -> F32:
    """Return the cosines and sines of rows with three positions each, like those of `rope_table`.

    Args:
        spec: One of `Graph.ropes`.
        context: Number of positions of the table.
        positions: Positions in time, height and width, [rows, 3].
    """
    radians, factor = frequencies(spec, context), attention_factor(spec, context)
    angles = positions[:, axes_of_pairs(spec)] * radians
    rows = np.stack([np.cos(angles) * factor, np.sin(angles) * factor], axis=-1)
    return np.ascontiguousarray(rows, np.float32)


def axes_of_pairs(spec: RopeSpec) -> npt.NDArray[np.int64]:
    """Return which position rotates each pair: 0 for time, 1 for height, 2 for width.

    Sections that alternate take every third pair each until they are full; time takes the rest.
    """
    axes = np.zeros(spec.rotary_dim // 2, np.int64)
    if spec.sections is None:
        return axes
    first = 0
    for axis, count in enumerate(spec.sections[:3]):
        if spec.sections_alternate:
            axes[axis : 3 * count : 3] = axis
        else:
            axes[first : first + count] = axis
            first += count
    return axes


def rope_bytes(spec: RopeSpec, context: int, more: int = 0) -> int:
    """Return the bytes of `rope_table` without computing it.

    Raises:
        ManifestError: The rope scaling lacks one of its parameters.
    """
    attention_factor(spec, context)
    return 2 * 4 * (context + more) * len(frequencies(spec, context))


def frequencies(spec: RopeSpec, context: int) -> F64:
    """Return the radians per position of each rotated pair, float64 [rotary_dim / 2]."""
    exponents = np.arange(0, spec.rotary_dim, 2, dtype=np.float64) / spec.rotary_dim
    plain = spec.theta**-exponents
    scaled = _SCALINGS[spec.scaling](spec, plain, context)
    if spec.rotated_pairs is not None:
        scaled[spec.rotated_pairs :] = 0.0
    return scaled


def attention_factor(spec: RopeSpec, context: int) -> float:
    """Return the factor on cosines and sines that corrects the softmax temperature.

    Only yarn and longrope have one; it is 1 for other scalings.
    """
    stated = spec.attention_factor
    if spec.scaling == "longrope" and context > _required(spec, "original_max_pos"):
        stated = spec.long_attention_factor
    if spec.scaling in ("yarn", "longrope") and stated is not None:
        return stated
    if spec.scaling == "yarn":
        # The paper on YaRN (arXiv 2309.00071) has fitted this to perplexities.
        return 0.1 * log(spec.factor) + 1.0 if spec.factor > 1 else 1.0
    if spec.scaling == "longrope" and spec.factor > 1:
        return sqrt(1.0 + log(spec.factor) / log(_required(spec, "original_max_pos")))
    return 1.0


def _unscaled(spec: RopeSpec, plain: F64, context: int) -> F64:
    del spec, context
    return plain


def _linear(spec: RopeSpec, plain: F64, context: int) -> F64:
    del context
    return plain / spec.factor


def _llama3(spec: RopeSpec, plain: F64, context: int) -> F64:
    """Interpolate long wavelengths, keep short ones and blend those in between."""
    del context
    low, high = _required(spec, "low_freq_factor"), _required(spec, "high_freq_factor")
    rotations = _required(spec, "original_max_pos") * plain / (2 * pi)
    # Llama 4 gives both bounds the same value, so nothing lies between them.
    width = max(high - low, 1e-9)
    blend = np.clip((rotations - low) / width, 0.0, 1.0)
    return (1 - blend) * plain / spec.factor + blend * plain


def _yarn(spec: RopeSpec, plain: F64, context: int) -> F64:
    del context
    original = _required(spec, "original_max_pos")

    def pair_with(rotations: float) -> float:
        # Pair i rotates theta^(-2 i / rotary_dim) / (2 pi) times a token; solved for i, where it
        # has rotated so often after the context of training.
        return spec.rotary_dim * log(original / (rotations * 2 * pi)) / (2 * log(spec.theta))

    low = pair_with(spec.beta_fast or 32.0)
    high = pair_with(spec.beta_slow or 1.0)
    if spec.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(float(low), 0.0), min(float(high), spec.rotary_dim - 1.0)
    # The paper guards against a ramp of zero width in this way.
    width = max(high - low, 0.001)
    ramp = np.clip((np.arange(len(plain)) - low) / width, 0.0, 1.0)
    blended: F64 = plain / spec.factor * ramp + plain * (1 - ramp)
    return blended


def _longrope(spec: RopeSpec, plain: F64, context: int) -> F64:
    long = context > _required(spec, "original_max_pos")
    factors = spec.long_factor if long else spec.short_factor
    if factors is None or len(factors) != len(plain):
        raise ManifestError(
            "longrope needs one factor for each frequency",
            where="inference.rope",
            expected=len(plain),
            found=None if factors is None else len(factors),
        )
    return plain / np.asarray(factors, dtype=np.float64)


_SCALINGS = {
    None: _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _required(spec: RopeSpec, field: str) -> float:
    value = getattr(spec, field)
    if value is None:
        raise ManifestError(
            f"rope scaling {spec.scaling} lacks {field}", where="inference.rope", found=spec
        )
    return float(value)
