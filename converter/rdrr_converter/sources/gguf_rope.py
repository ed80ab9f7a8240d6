"""Recovering llama3 rope scaling from the divisors of frequencies that a GGUF keeps.

transformers divides the frequency f_i = theta^(-2i/d) by `factor` where its wavelength 2 pi / f_i
exceeds context / low, leaves it where it is below context / high, and between them divides by
1 / ((1 - s) / factor + s) with s = (context / wavelength - low) / (high - low). llama.cpp writes
the divisors and drops the parameters; only context / low and context / high matter, so `low` may
be taken as 1, which is also what every published checkpoint has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError

F64Array = npt.NDArray[np.float64]

LOW = 1.0
PUBLISHED = (4.0, 8192)
"""`high_freq_factor` and the original context of Llama 3.1 to 3.3."""

_TOLERANCE = 1e-5


def read_divisors(divisors: F64Array, theta: float, where: object) -> dict[str, Any]:
    """The `rope_scaling` of a configuration; empty where nothing is scaled.

    Args:
        divisors: One for each frequency, [d / 2].
        theta: Base of the frequencies.
        where: The file, for messages.

    Raises:
        ConversionError: No llama3 or linear scaling gives these divisors.
    """
    if np.allclose(divisors, 1.0, rtol=_TOLERANCE):
        return {}
    # Six digits: what is written is float32, and not always the factor itself.
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
        "rope scaling that cannot be stated",
        where=where,
        expected="divisors of llama3 scaling",
        found=np.array2string(divisors, precision=4, threshold=8),
        hint="convert the original checkpoint",
    )


def divisors(scaling: Mapping[str, Any], theta: float, frequencies: int) -> F64Array:
    """What llama3 scaling divides each frequency by.

    Args:
        scaling: `rope_scaling` of a configuration.
        theta: Base of the frequencies.
        frequencies: Their number, half of what is rotated.
    """
    low = float(scaling["low_freq_factor"])
    rotations = theta ** (-np.arange(frequencies) / frequencies) / (2 * np.pi)
    high, context = scaling["high_freq_factor"] / low, scaling["original_max_position_embeddings"]
    return _llama3(rotations, scaling["factor"], high, context / low)


def _llama3(rotations: F64Array, factor: float, high: float, context: float) -> F64Array:
    """Divisors that the parameters give; `rotations` are frequencies over 2 pi."""
    smooth = np.clip((context * rotations - LOW) / (high - LOW), 0.0, 1.0)
    divisors: F64Array = 1.0 / ((1.0 - smooth) / factor + smooth)
    return divisors


def _fitted(divisors: F64Array, rotations: F64Array, factor: float) -> list[tuple[float, int]]:
    """Parameters from the frequencies between the two wavelengths, where s is a line in them."""
    between = (divisors > 1.0 + _TOLERANCE) & (divisors < factor * (1.0 - _TOLERANCE))
    if between.sum() < 2 or factor <= 1.0:
        return []
    smooth = (1.0 / divisors[between] - 1.0 / factor) / (1.0 - 1.0 / factor)
    slope, start = np.polyfit(rotations[between], smooth, 1)
    if start >= 0.0:
        return []
    # s = (context * rotations - low) / (high - low), so its start is -low / (high - low).
    width = -LOW / start
    return [(round(float(LOW + width), 4), max(1, round(slope * width)))]


def from_metadata(
    values: F64Array | None, config: Mapping[str, Any], where: object
) -> dict[str, Any]:
    """What the divisors add to a configuration.

    Raises:
        ConversionError: They cannot be stated, or scaling is stated twice.
    """
    if values is None:
        return {}
    scaling = read_divisors(values, float(config["rope_theta"]), where)
    if scaling and config.get("rope_scaling"):
        raise ConversionError("rope scaling is stated twice", where=where)
    return {"rope_scaling": scaling} if scaling else {}


def from_factors(short: F64Array | None, long: F64Array | None, where: object) -> dict[str, Any]:
    """What longrope's divisors add to a configuration; its other parameters are metadata.

    Raises:
        ConversionError: One of the two is missing.
    """
    if short is None and long is None:
        return {}
    if short is None or long is None:
        raise ConversionError("longrope needs short and long factors", where=where)
    # Eight digits or fewer bring back what was rounded to float32.
    stated = [[float(str(np.float32(one))) for one in factors] for factors in (short, long)]
    scaling = {"type": "longrope", "short_factor": stated[0], "long_factor": stated[1]}
    return {"rope_scaling": scaling}
