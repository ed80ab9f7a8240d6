"""The candidates for the inverse scale of a group, rounded as in the loops of the codecs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from rdrr_format.codecs import Floats, q4_k, q5_k
from rdrr_format.codecs.affine import Search


def _affine(search: Search, largest: int) -> Floats:
    steps = np.arange(search.nstep + 1, dtype=np.float32)
    return np.float32(search.rmin) + np.float32(search.rdelta) * steps + np.float32(largest)


def _signed(largest: int) -> Floats:
    steps = np.array([step for step in range(-9, 10) if step], np.float32)
    return -(np.float32(largest) + np.float32(0.1) * steps)


NUMERATORS: Mapping[str, Floats] = MappingProxyType(
    {"Q4_K": _affine(q4_k.SEARCH, 15), "Q5_K": _affine(q5_k.SEARCH, 31), "Q6_K": _signed(32)}
)
"""Numerators of the candidates by storage type, float32.

The inverse scale is the numerator divided by the range of the group (Q4_K and Q5_K) or by its value
of largest magnitude (Q6_K).
"""
