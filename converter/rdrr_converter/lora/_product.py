"""A matrix product that sums over the rank in a fixed order: out += scale * left @ right.

The order of the sums in a BLAS product may depend on the shapes and on the machine; then the bytes
of the package would depend on them too. Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
from rdrr_format.codecs.compiled import compiled

from rdrr_converter.checkpoint.source import F32Array


@compiled
def add_product(out: F32Array, left: F32Array, right: F32Array, scale: np.float32) -> None:
    """Add a scaled product in place.

    Args:
        out: Matrix [rows, columns] to add to.
        left: Matrix [rows, rank].
        right: Matrix [rank, columns].
        scale: Factor on the product.
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
