"""What is tried for a group's inverse scale, rounded as the loops of the codecs round it."""

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
"""By storage type, float32: over the range of a group (Q4_K, Q5_K) or its peak (Q6_K)."""
