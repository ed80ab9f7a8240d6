"""From a column's importance to the weight of each element's error, as ggml does it."""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs.base import Floats


def spread_weights(rows: Floats, importance: Floats, span: int, factor: float = 2.0) -> Floats:
    """importance * sqrt(sigma2 + x^2), where sigma2 is `factor` times the mean square of a span.

    Args:
        rows: float32 [n, K].
        importance: float32 [K].
        span: Elements of a row that share a sigma2; divides K.
        factor: 2 for blocks of 256, 1 for the types with blocks of 32, whose span is the row.

    Returns:
        float32 [n, K].
    """
    squares = (rows * rows).reshape(-1, span)
    sigma2 = np.float32(factor) * ordered_sum(squares) / np.float32(span)
    weights: Floats = importance * np.sqrt(sigma2[:, None] + squares).reshape(rows.shape)
    return weights


def ordered_sum(values: Floats) -> Floats:
    """Sums along the last axis, left to right (NumPy's own sum adds in pairs)."""
    total = np.zeros(len(values), np.float32)
    for column in values.T:
        total += column
    return total
