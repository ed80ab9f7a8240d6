"""out += scale * left @ right, every sum in the order of the rank.

A library's product may sum in an order that depends on how much it is given and on the machine;
then the package's bytes would, too. Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
from rdrr_format.codecs.compiled import compiled

from rdrr_converter.sources.base import F32Array


@compiled
def add_product(out: F32Array, left: F32Array, right: F32Array, scale: np.float32) -> None:
    """Add a scaled product in place.

    Args:
        out: [rows, columns].
        left: [rows, rank].
        right: [rank, columns].
        scale: Multiplies the sums.
    """
    total = np.empty(out.shape[1], np.float32)
    for row in range(out.shape[0]):
        total[:] = np.float32(0)
        for rank in range(left.shape[1]):
            factor = left[row, rank]
            for column in range(out.shape[1]):
                total[column] += factor * right[rank, column]
        for column in range(out.shape[1]):
            out[row, column] += scale * total[column]
