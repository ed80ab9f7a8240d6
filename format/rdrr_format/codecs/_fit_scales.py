"""Compiled quantization of a block's group scales under one super-scale, weighted by importance.

Used by Q4_K and Q5_K. It equals ggml's make_qp_quants bit for bit; see
`rdrr_format.codecs.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.compiled import ONE, TINY, ZERO, compiled, nearest

_Array = npt.NDArray[Any]


@compiled
def fit_scales(values: _Array, weights: _Array, nmax: int, codes: _Array, scales: _Array) -> None:
    """Quantize rows of non-negative values to codes 0 to nmax, with one scale per row.

    Args:
        values: float32 [n, size], the scales or minimums of a block's groups.
        weights: float32 [n, size], weights of the squared errors.
        nmax: Largest code.
        codes: uint8 [n, size], output.
        scales: float32 [n], output; values are approximately scale * code.
    """
    for row in range(len(values)):
        x, w = values[row], weights[row]
        peak = max(ZERO, x.max())
        if peak < TINY:
            codes[row] = 0
            scales[row] = ZERO
        else:
            scales[row] = _refine(x, w, _best_inverse(x, w, nmax, peak), nmax, codes[row])


@compiled
def _best_inverse(x: _Array, w: _Array, nmax: int, peak: np.float32) -> Any:
    fnmax = np.float32(nmax)
    inverse = fnmax / peak
    best = ZERO
    # Nothing to clip here: no product exceeds nmax by more than a rounding error.
    for i in range(len(x)):
        residual = x[i] - ONE / inverse * np.float32(nearest(inverse * x[i]))
        best += w[i] * residual * residual
    for step in range(-4, 5):
        if step == 0:
            continue
        trial = (np.float32(0.1) * np.float32(step) + fnmax) / peak
        error = ZERO
        for i in range(len(x)):
            residual = x[i] - ONE / trial * np.float32(min(nearest(trial * x[i]), nmax))
            error += w[i] * residual * residual
        if error < best:
            best = error
            inverse = trial
    return inverse


@compiled
def _refine(x: _Array, w: _Array, inverse: np.float32, nmax: int, codes: _Array) -> Any:
    """Change one code at a time while that lowers the error; return the least-squares scale."""
    sum_xl, sum_l2 = ZERO, ZERO
    for i in range(len(x)):
        codes[i] = min(nearest(inverse * x[i]), nmax)
        code = np.float32(codes[i])
        sum_xl += w[i] * x[i] * code
        sum_l2 += w[i] * code * code
    for _ in range(5):
        changed = False
        for i in range(len(x)):
            code = np.float32(codes[i])
            rest_xl = sum_xl - w[i] * x[i] * code
            rest_l2 = sum_l2 - w[i] * code * code
            if not (rest_xl > ZERO and rest_l2 > ZERO):
                continue
            # The code nearest to x under the scale that fits all other codes.
            moved = np.float32(min(nearest(x[i] * rest_l2 / rest_xl), nmax))
            if moved == code:
                continue
            rest_xl += w[i] * x[i] * moved
            rest_l2 += w[i] * moved * moved
            # The best scale leaves the error sum(w x^2) - sum_xl^2 / sum_l2: compare quotients.
            if rest_xl * rest_xl * sum_l2 > sum_xl * sum_xl * rest_l2:
                codes[i] = np.uint8(np.int32(moved))
                sum_xl, sum_l2 = rest_xl, rest_l2
                changed = True
        if not changed:
            break
    return sum_xl / sum_l2 if sum_l2 > ZERO else ZERO
