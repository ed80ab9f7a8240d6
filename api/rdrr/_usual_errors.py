"""The error that a storage type usually has, which an error of a conversion is shown beside."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

USUAL_ERRORS: Mapping[str, float] = MappingProxyType(
    {
        "MXFP4": 0.114,
        "Q4_0": 0.086,
        "Q4_1": 0.078,
        "Q4_K": 0.071,
        "Q5_0": 0.043,
        "Q5_1": 0.038,
        "Q5_K": 0.036,
        "Q6_K": 0.018,
        "Q8_0": 0.0054,
        "BF16": 0.0017,
        "F16": 0.0002,
    }
)
"""Relative root-mean-square errors of normally distributed weights, by storage type.

Rounding weights of a real model costs about as much, and more where a few weights of a block are
much larger than the others.
"""


def usual_error(dtype: str) -> str:
    """Return the usual error of a type as a percentage; a dash for a type that is exact."""
    error = USUAL_ERRORS.get(dtype)
    return "-" if error is None else f"{100 * error:.2g} %"
