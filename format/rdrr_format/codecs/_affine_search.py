"""Compiled search for a group's scale and minimum (Q4_K, Q5_K, and Q5_1 with importance).

It equals ggml's make_qkx2_quants and make_qkx3_quants bit for bit; see
`rdrr_format.codecs.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.compiled import (
    IN_RANGE,
    LANES,
    ONE,
    UNROLL,
    ZERO,
    clipped_code,
    compiled,
    inlined,
    nearest,
)

_Array = npt.NDArray[Any]

GROUP = 32

# Offsets into a tile: three matrices [GROUP, LANES], then rows with one value per lane.
_X = 0
_W = GROUP * LANES
_CODE = 2 * GROUP * LANES
_BOTTOM, _TOP, _LOW, _SCALE, _INVERSE, _BEST = (3 * GROUP * LANES + row * LANES for row in range(6))
_SUM_W, _SUM_X, _SUM_L, _SUM_L2, _SUM_XL = (3 * GROUP * LANES + row * LANES for row in range(6, 11))
_SLOPE, _FLOOR, _SPREAD, _ERROR, _KEPT, _KEPT_LOW = (
    3 * GROUP * LANES + row * LANES for row in range(11, 17)
)
_TILE = (3 * GROUP + 17) * LANES


@compiled
def search_affine(
    groups: _Array,
    weights: _Array,
    weighted: bool,
    nmax: int,
    rmin: np.float32,
    rdelta: np.float32,
    nstep: int,
    scales: _Array,
    mins: _Array,
    chosen: _Array,
) -> None:
    """Find the scale and the minimum of each group for codes 0 to nmax.

    The candidates for the inverse scale are (rmin + rdelta * step + nmax) / range for each step
    from 0 to nstep.

    Args:
        groups: float32 [n, 32].
        weights: float32 [n, 32], weights of the squared errors; ignored unless `weighted`.
        weighted: Whether to use `weights`; otherwise the weight of x is sqrt(mean square) + |x|.
        nmax: Largest code.
        rmin: Start of the candidates.
        rdelta: Distance of the candidates.
        nstep: Largest step.
        scales: float32 [n], output.
        mins: float32 [n], output; x is approximately scale * code - min.
        chosen: float32 [n, 2], output: the codes are clip(nearest(chosen[0] * (x - chosen[1]))).
    """
    tile = np.zeros(_TILE, np.float32)
    fnmax = np.float32(nmax)
    for first in range(0, len(groups), LANES):
        lanes = min(LANES, len(groups) - first)
        _load(tile, groups, weights, weighted, first, lanes)
        _initial_fit(tile, nmax)
        for step in range(nstep + 1):
            if _next_inverse(tile, rmin + rdelta * np.float32(step) + fnmax):
                _sum_codes(tile, nmax, True)
            else:
                _sum_codes(tile, nmax, False)
            _solve(tile)
            _keep_better(tile)
        for lane in range(lanes):
            scales[first + lane] = tile[_SCALE + lane]
            mins[first + lane] = -tile[_LOW + lane]
            chosen[first + lane, 0] = tile[_KEPT + lane]
            chosen[first + lane, 1] = tile[_KEPT_LOW + lane]


@compiled
def _load(
    tile: _Array, groups: _Array, weights: _Array, weighted: bool, first: int, lanes: int
) -> None:
    tile[:_CODE] = ZERO
    for lane in range(lanes):
        for i in range(GROUP):
            tile[_X + i * LANES + lane] = groups[first + lane, i]
    if weighted:
        for lane in range(lanes):
            for i in range(GROUP):
                tile[_W + i * LANES + lane] = weights[first + lane, i]
        return
    for lane in range(LANES):
        tile[_ERROR + lane] = ZERO
    for i in range(GROUP):
        for lane in range(LANES):
            x = tile[_X + i * LANES + lane]
            tile[_ERROR + lane] += x * x
    for lane in range(LANES):
        tile[_ERROR + lane] = np.sqrt(tile[_ERROR + lane] / np.float32(GROUP))
    for i in range(GROUP):
        for lane in range(LANES):
            tile[_W + i * LANES + lane] = tile[_ERROR + lane] + abs(tile[_X + i * LANES + lane])


@compiled
def _initial_fit(tile: _Array, nmax: int) -> None:
    for lane in range(LANES):
        x, w = tile[_X + lane], tile[_W + lane]
        tile[_BOTTOM + lane] = x
        tile[_TOP + lane] = x
        tile[_SUM_W + lane] = w
        tile[_SUM_X + lane] = w * x
        tile[_BEST + lane] = ZERO
    for i in range(1, GROUP):
        for lane in range(LANES):
            x, w = tile[_X + i * LANES + lane], tile[_W + i * LANES + lane]
            tile[_BOTTOM + lane] = min(tile[_BOTTOM + lane], x)
            tile[_TOP + lane] = max(tile[_TOP + lane], x)
            tile[_SUM_W + lane] += w
            tile[_SUM_X + lane] += w * x
    for lane in range(LANES):
        # The stored minimum is unsigned, so the floor is at most 0, here and in `_solve`.
        low = min(tile[_BOTTOM + lane], ZERO)
        tile[_LOW + lane] = low
        tile[_INVERSE + lane] = np.float32(nmax) / (tile[_TOP + lane] - low)
        tile[_SCALE + lane] = ONE / tile[_INVERSE + lane]
        tile[_KEPT + lane] = tile[_INVERSE + lane]
        tile[_KEPT_LOW + lane] = low
    for i in range(GROUP):
        for lane in range(LANES):
            x, low = tile[_X + i * LANES + lane], tile[_LOW + lane]
            code = clipped_code(tile[_INVERSE + lane] * (x - low), 0, nmax, False)
            residual = tile[_SCALE + lane] * code + low - x
            tile[_BEST + lane] += tile[_W + i * LANES + lane] * (residual * residual)
    for lane in range(LANES):
        if tile[_TOP + lane] <= tile[_LOW + lane]:
            # All values are equal: the codes are 0. No candidate can beat an error of minus
            # infinity.
            tile[_SCALE + lane] = ZERO
            tile[_KEPT + lane] = ZERO
            tile[_KEPT_LOW + lane] = ZERO
            tile[_BEST + lane] = -np.float32(np.inf)
            tile[_TOP + lane] = tile[_LOW + lane] + ONE  # keeps fast rounding valid


@compiled
def _next_inverse(tile: _Array, numerator: np.float32) -> bool:
    """Set the inverse scales; return whether fast rounding is valid for all products with them."""
    out_of_range = 0
    for lane in range(LANES):
        low = tile[_LOW + lane]
        inverse = numerator / (tile[_TOP + lane] - low)
        tile[_INVERSE + lane] = inverse
        above = abs(inverse * (tile[_TOP + lane] - low))
        below = abs(inverse * (tile[_BOTTOM + lane] - low))
        # Comparisons with NaN are false, so NaN counts as out of range.
        out_of_range += 0 if above < IN_RANGE and below < IN_RANGE else 1
    return out_of_range == 0


@inlined
def _sum_codes(tile: _Array, nmax: int, in_range: bool) -> None:
    for lane in range(LANES):
        tile[_SUM_L + lane] = ZERO
        tile[_SUM_L2 + lane] = ZERO
        tile[_SUM_XL + lane] = ZERO
    for start in range(0, GROUP, UNROLL):
        for lane in range(LANES):
            inverse, low = tile[_INVERSE + lane], tile[_LOW + lane]
            sum_l, sum_l2 = tile[_SUM_L + lane], tile[_SUM_L2 + lane]
            sum_xl = tile[_SUM_XL + lane]
            for i in range(UNROLL):
                at = (start + i) * LANES + lane
                x = tile[_X + at]
                code = clipped_code(inverse * (x - low), 0, nmax, in_range)
                weighted_code = tile[_W + at] * code
                tile[_CODE + at] = code
                sum_l += weighted_code
                sum_l2 += weighted_code * code
                sum_xl += weighted_code * x
            tile[_SUM_L + lane] = sum_l
            tile[_SUM_L2 + lane] = sum_l2
            tile[_SUM_XL + lane] = sum_xl


@compiled
def _solve(tile: _Array) -> None:
    """Fit slope and floor to the codes by weighted least squares, and compute the error."""
    for lane in range(LANES):
        sum_w, sum_x, sum_l = tile[_SUM_W + lane], tile[_SUM_X + lane], tile[_SUM_L + lane]
        sum_l2, sum_xl = tile[_SUM_L2 + lane], tile[_SUM_XL + lane]
        spread = sum_w * sum_l2 - sum_l * sum_l
        slope = (sum_w * sum_xl - sum_x * sum_l) / spread
        floor = (sum_l2 * sum_x - sum_l * sum_xl) / spread
        if floor > ZERO:
            slope = sum_xl / sum_l2
            floor = ZERO
        tile[_SLOPE + lane] = slope
        tile[_FLOOR + lane] = floor
        tile[_SPREAD + lane] = spread
        tile[_ERROR + lane] = ZERO
    for start in range(0, GROUP, UNROLL):
        for lane in range(LANES):
            slope, floor = tile[_SLOPE + lane], tile[_FLOOR + lane]
            error = tile[_ERROR + lane]
            for i in range(UNROLL):
                at = (start + i) * LANES + lane
                residual = slope * tile[_CODE + at] + floor - tile[_X + at]
                error += tile[_W + at] * (residual * residual)
            tile[_ERROR + lane] = error


@compiled
def _keep_better(tile: _Array) -> None:
    for lane in range(LANES):
        if tile[_SPREAD + lane] > ZERO and tile[_ERROR + lane] < tile[_BEST + lane]:
            tile[_BEST + lane] = tile[_ERROR + lane]
            tile[_SCALE + lane] = tile[_SLOPE + lane]
            tile[_KEPT + lane] = tile[_INVERSE + lane]
            tile[_KEPT_LOW + lane] = tile[_LOW + lane]
            # ggml overwrites the minimum here, so later candidates are rounded with the new one.
            tile[_LOW + lane] = tile[_FLOOR + lane]


@compiled
def affine_codes(
    groups: _Array, steps: _Array, offsets: _Array, chosen: _Array, nmax: int, out: _Array
) -> None:
    """Compute the codes of each group for the stored scales and minimums.

    Args:
        groups: float32 [n, 32].
        steps: float32 [n], stored scale of each group.
        offsets: float32 [n], stored minimum; x is approximately step * code - offset.
        chosen: float32 [n, 2], output of `search_affine`, used where the stored scale is 0.
        nmax: Largest code.
        out: uint8 [n, 32], output.
    """
    for group in range(len(groups)):
        step, offset = steps[group], offsets[group]
        inverse, low = chosen[group, 0], chosen[group, 1]
        for i in range(GROUP):
            x = groups[group, i]
            value = (x + offset) / step if step != ZERO else inverse * (x - low)
            out[group, i] = min(max(nearest(value), 0), nmax)
