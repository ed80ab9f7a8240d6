"""Compiled search for the scale of a group with signed codes.

Q6_K always uses it; Q5_0 and Q4_0 use it if there are importance weights. It equals ggml's
make_qx_quants with squared errors bit for bit; see `rdrr_format.codecs.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.compiled import (
    LANES,
    TINY,
    UNROLL,
    ZERO,
    clipped_code,
    compiled,
    inlined,
    nearest,
)

_Array = npt.NDArray[Any]

_GROUP = 32  # largest group size; Q6_K has 16

INFINITE = np.float32(np.inf)

# Offsets into a tile: three matrices [_GROUP, LANES], then rows with one value per lane.
_X = 0
_W = _GROUP * LANES
_WX = 2 * _GROUP * LANES
_PEAK, _SCALE, _INVERSE, _BEST, _SUM_XL, _SUM_L2, _KEPT = (
    3 * _GROUP * LANES + row * LANES for row in range(7)
)
_TILE = (3 * _GROUP + 7) * LANES


@compiled
def search_signed(
    groups: _Array, weights: _Array, weighted: bool, nmax: int, scales: _Array, chosen: _Array
) -> None:
    """Find the scale of each group for codes -nmax to nmax - 1.

    Args:
        groups: float32 [n, size], size even and at most 32.
        weights: float32 [n, size], weights of the squared errors; ignored unless `weighted`.
        weighted: Whether to use `weights`; otherwise the weight of x is x * x.
        nmax: Codes run from -nmax to nmax - 1.
        scales: float32 [n], output; 0 for a group of zeros.
        chosen: float32 [n], output: the inverse scale of the codes clip(nearest(chosen * x)); 0 for
            a group of zeros.
    """
    size = groups.shape[1]
    tile = np.zeros(_TILE, np.float32)
    fnmax = np.float32(nmax)
    for first in range(0, len(groups), LANES):
        lanes = min(LANES, len(groups) - first)
        _load(tile, groups, weights, weighted, first, lanes)
        # The sign gives the largest magnitude the code -nmax: there is no code nmax.
        _try(tile, size, nmax, -fnmax)
        for lane in range(LANES):
            known = tile[_SUM_L2 + lane] > ZERO
            scale = tile[_SUM_XL + lane] / tile[_SUM_L2 + lane] if known else ZERO
            tile[_SCALE + lane] = scale
            tile[_BEST + lane] = scale * tile[_SUM_XL + lane]
            tile[_KEPT + lane] = tile[_INVERSE + lane]
        for step in range(-9, 10):
            if step != 0:
                _try(tile, size, nmax, -(fnmax + np.float32(0.1) * np.float32(step)))
                _keep_better(tile)
        for lane in range(lanes):
            is_zero = abs(tile[_PEAK + lane]) == INFINITE
            scales[first + lane] = ZERO if is_zero else tile[_SCALE + lane]
            chosen[first + lane] = ZERO if is_zero else tile[_KEPT + lane]


@compiled
def _load(
    tile: _Array, groups: _Array, weights: _Array, weighted: bool, first: int, lanes: int
) -> None:
    size = groups.shape[1]
    tile[:_WX] = ZERO
    for lane in range(lanes):
        for i in range(size):
            x = groups[first + lane, i]
            tile[_X + i * LANES + lane] = x
            tile[_W + i * LANES + lane] = weights[first + lane, i] if weighted else x * x
    for lane in range(LANES):
        tile[_PEAK + lane] = ZERO
    for i in range(size):
        for lane in range(LANES):
            x, peak = tile[_X + i * LANES + lane], tile[_PEAK + lane]
            tile[_WX + i * LANES + lane] = tile[_W + i * LANES + lane] * x
            tile[_PEAK + lane] = x if abs(x) > abs(peak) else peak  # of equal magnitudes, the first
    # A group of zeros, or a lane without a group, would divide by zero and round NaN. An infinite
    # peak makes all their codes 0 and keeps the fast rounding valid for the other lanes.
    for lane in range(LANES):
        if abs(tile[_PEAK + lane]) < TINY:
            tile[_PEAK + lane] = INFINITE


@compiled
def _try(tile: _Array, size: int, nmax: int, numerator: np.float32) -> None:
    for lane in range(LANES):
        tile[_INVERSE + lane] = numerator / tile[_PEAK + lane]
        tile[_SUM_XL + lane] = ZERO
        tile[_SUM_L2 + lane] = ZERO
    # The sizes are literals because only loops with constant bounds are vectorized.
    if size == 16:
        _sum_codes(tile, 16, nmax)
    else:
        _sum_codes(tile, _GROUP, nmax)


@inlined
def _sum_codes(tile: _Array, size: int, nmax: int) -> None:
    # |inverse * x| is at most the numerator, so fast rounding is valid for all products.
    for start in range(0, size, UNROLL):
        for lane in range(LANES):
            inverse = tile[_INVERSE + lane]
            sum_xl, sum_l2 = tile[_SUM_XL + lane], tile[_SUM_L2 + lane]
            for i in range(UNROLL):
                at = (start + i) * LANES + lane
                code = clipped_code(inverse * tile[_X + at], -nmax, nmax - 1, True)
                sum_xl += tile[_WX + at] * code
                sum_l2 += tile[_W + at] * code * code
            tile[_SUM_XL + lane] = sum_xl
            tile[_SUM_L2 + lane] = sum_l2


@compiled
def _keep_better(tile: _Array) -> None:
    for lane in range(LANES):
        sum_xl, sum_l2 = tile[_SUM_XL + lane], tile[_SUM_L2 + lane]
        # The error is sum(w x^2) - sum_xl^2 / sum_l2; ggml compares the quotients without dividing.
        if sum_l2 > ZERO and sum_xl * sum_xl > tile[_BEST + lane] * sum_l2:
            tile[_SCALE + lane] = sum_xl / sum_l2
            tile[_BEST + lane] = tile[_SCALE + lane] * sum_xl
            tile[_KEPT + lane] = tile[_INVERSE + lane]


@compiled
def signed_codes(groups: _Array, steps: _Array, chosen: _Array, nmax: int, out: _Array) -> None:
    """Compute the codes of each group for the stored scales, plus nmax: 0 to 2 * nmax - 1.

    Args:
        groups: float32 [n, size].
        steps: float32 [n], stored scale of each group; 0 to use `chosen` instead.
        chosen: float32 [n], output of `search_signed`; where both are 0 the result is 0, as in
            ggml.
        nmax: Codes run from -nmax to nmax - 1.
        out: uint8 [n, size], output.
    """
    for group in range(len(groups)):
        step, inverse = steps[group], chosen[group]
        for i in range(groups.shape[1]):
            x = groups[group, i]
            value = x / step if step != ZERO else inverse * x
            code = min(max(nearest(value), -nmax), nmax - 1) + nmax
            out[group, i] = code if step != ZERO or inverse != ZERO else 0
