"""Recover llama3 rope scaling from the divisors of the frequencies that a GGUF stores.

transformers divides the frequency f_i = theta^(-2i/d) by `factor` where its wavelength 2 pi / f_i
exceeds context / low, leaves it where it is below context / high, and between them divides by
1 / ((1 - s) / factor + s) with s = (context / wavelength - low) / (high - low). llama.cpp writes
the divisors but not the parameters. Only context / low and context / high matter, so `low` can be
set to 1, which is also its value in every published checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError

from rdrr_converter.gguf.families.gemma4 import proportional, with_part

F64Array = npt.NDArray[np.float64]

LOW = 1.0
PUBLISHED = (4.0, 8192)
"""`high_freq_factor` and original context length of Llama 3.1 to 3.3."""

_TOLERANCE = 1e-5


def read_divisors(divisors: F64Array, theta: float, where: object) -> dict[str, Any]:
    """Return the `rope_scaling` of a configuration, or an empty dictionary without scaling.

    Args:
        divisors: Divisor of each frequency, float64 [d / 2].
        theta: Base of the frequencies.
        where: The file, for messages.

    Raises:
        ConversionError: No llama3 or linear scaling gives these divisors.
    """
    if np.allclose(divisors, 1.0, rtol=_TOLERANCE):
        return {}
    # The divisors are float32 and can differ from the factor in the last digits, so six are kept.
    factor = float(f"{divisors.max():.6g}")
    if np.allclose(divisors, factor, rtol=_TOLERANCE):
        return {"rope_type": "linear", "factor": factor}
    rotations = theta ** (-np.arange(divisors.size) / divisors.size) / (2 * np.pi)
    for high, context in (PUBLISHED, *_fitted(divisors, rotations, factor)):
        if np.allclose(_llama3(rotations, factor, high, context), divisors, rtol=_TOLERANCE):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
    raise ConversionError(
        "unknown rope scaling",
        where=where,
        expected="divisors of llama3 scaling",
        found=np.array2string(divisors, precision=4, threshold=8),
        hint="convert the original checkpoint",
    )


def divisors(scaling: Mapping[str, Any], theta: float, frequencies: int) -> F64Array:
    """Return the divisors of the frequencies for llama3 scaling, float64 [frequencies].

    Args:
        scaling: `rope_scaling` of a configuration.
        theta: Base of the frequencies.
        frequencies: Number of frequencies, half of the rotated dimensions.
    """
    low = float(scaling["low_freq_factor"])
    rotations = theta ** (-np.arange(frequencies) / frequencies) / (2 * np.pi)
    high, context = scaling["high_freq_factor"] / low, scaling["original_max_position_embeddings"]
    return _llama3(rotations, scaling["factor"], high, context / low)


def _llama3(rotations: F64Array, factor: float, high: float, context: float) -> F64Array:
    """Return the divisors for some parameters; `rotations` are the frequencies over 2 pi."""
    smooth = np.clip((context * rotations - LOW) / (high - LOW), 0.0, 1.0)
    divisors: F64Array = 1.0 / ((1.0 - smooth) / factor + smooth)
    return divisors


def _fitted(divisors: F64Array, rotations: F64Array, factor: float) -> list[tuple[float, int]]:
    """Return parameters fitted to the frequencies in between, where s is linear in them."""
    between = (divisors > 1.0 + _TOLERANCE) & (divisors < factor * (1.0 - _TOLERANCE))
    if between.sum() < 2 or factor <= 1.0:
        return []
    smooth = (1.0 / divisors[between] - 1.0 / factor) / (1.0 - 1.0 / factor)
    slope, intercept = np.polyfit(rotations[between], smooth, 1)
    if intercept >= 0.0:
        return []
    # s = (context * rotations - low) / (high - low), so its intercept is -low / (high - low).
    width = -LOW / intercept
    return [(round(float(LOW + width), 4), max(1, round(slope * width)))]


def from_metadata(
    values: F64Array | None, config: Mapping[str, Any], where: object
) -> dict[str, Any]:
    """Return the configuration keys for the divisors of a GGUF; none if it has no divisors.

    Raises:
        ConversionError: The scaling is unknown, or the configuration states scaling already.
    """
    if values is None:
        return {}
    if "global_head_dim" in config:  # only the global layers of Gemma 4 have divisors
        return with_part(config, proportional(values, where))
    scaling = read_divisors(values, float(config["rope_theta"]), where)
    if scaling and config.get("rope_scaling"):
        raise ConversionError("rope scaling is stated twice", where=where)
    return {"rope_scaling": scaling} if scaling else {}


def from_factors(
    short: F64Array | None, long: F64Array | None, config: Mapping[str, Any], where: object
) -> dict[str, Any]:
    """Return the configuration keys for longrope's divisors; its other parameters are metadata.

    Args:
        short: Divisors for short contexts, or None.
        long: Divisors for long contexts, or None.
        config: The configuration so far, which may have the factors on cosines and sines.
        where: The file, for messages.

    Raises:
        ConversionError: One of the two tensors is missing.
    """
    if short is None and long is None:
        return {}
    if short is None or long is None:
        raise ConversionError("longrope needs short and long factors", where=where)
    # The shortest decimal of a float32 restores the factor before it was rounded.
    stated = [[float(str(np.float32(factor))) for factor in factors] for factors in (short, long)]
    scaling = {"type": "longrope", "short_factor": stated[0], "long_factor": stated[1]}
    known = config.get("rope_scaling") or {}
    scaling |= {key: known[key] for key in ("short_mscale", "long_mscale") if key in known}
    return {"rope_scaling": scaling}
