"""Masks of the tokens that a constraint allows, as samplers read them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def packed(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Return a mask in which token i is bit i mod 32 of word i / 32.

    Args:
        allowed: Whether each token is allowed, [vocabulary].
    """
    bits = np.pad(allowed, (0, -len(allowed) % 32))
    return np.packbits(bits, bitorder="little").view(np.uint32)
