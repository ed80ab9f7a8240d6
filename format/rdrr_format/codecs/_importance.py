"""Compute the weight of each element's error from the importance of its column, as in ggml."""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs.base import Floats


def spread_weights(rows: Floats, importance: Floats, span: int, factor: float = 2.0) -> Floats:
    """Return the weight of each element's error: importance * sqrt(sigma2 + x^2).

    sigma2 is `factor` times the mean square of the span that the element belongs to.

    Args:
        rows: float32 [n, K].
        importance: float32 [K].
        span: Number of consecutive elements of a row that share a sigma2; a divisor of K.
        factor: 2 for types with blocks of 256 weights; 1 for types with blocks of 32, whose span is
            the whole row.

    Returns:
        float32 [n, K].
    """
    squares = (rows * rows).reshape(-1, span)
    sigma2 = np.float32(factor) * ordered_sum(squares) / np.float32(span)
    weights: Floats = importance * np.sqrt(sigma2[:, None] + squares).reshape(rows.shape)
    return weights


def ordered_sum(values: Floats) -> Floats:
    """Sum along the last axis from left to right, as in ggml; NumPy's own sum adds pairwise."""
    total = np.zeros(len(values), np.float32)
    for column in values.T:
        total += column
    return total
