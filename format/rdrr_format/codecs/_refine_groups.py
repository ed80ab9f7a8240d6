"""Compiled refinement of groups whose scale is a small integer times a block's scale.

    w = d * a * code - dmin * b

Given d and dmin as they are stored, every group tries the neighbours of its integers a and b, with
its codes rounded again for each of them, and keeps the best. The sums that it returns let the
caller fit d and dmin to the chosen integers and codes.

Sums are added in the order of the elements, so the result is the same on every machine. It does not
reproduce any function of ggml. The layout of tiles is explained in
`rdrr_format.codecs.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.compiled import LANES, MAGIC, ONE, UNROLL, ZERO, compiled, inlined

_Array = npt.NDArray[Any]

_GROUP = 32  # largest group size

# Offsets into a tile: two matrices [_GROUP, LANES], then rows with one value per lane.
_X = 0
_W = _GROUP * LANES
_D, _DMIN, _A, _B, _BEST_A, _BEST_B, _BEST = (2 * _GROUP * LANES + row * LANES for row in range(7))
_STEP, _OFFSET, _INVERSE, _ERROR, _TRY_A, _TRY_B = (
    2 * _GROUP * LANES + row * LANES for row in range(7, 13)
)
_SUMS = 2 * _GROUP * LANES + 13 * LANES
_TILE = _SUMS + 5 * LANES


@compiled
def refine_groups(
    groups: _Array,
    weights: _Array,
    d: _Array,
    dmin: _Array,
    bounds: _Array,
    reach_a: int,
    reach_b: int,
    pairs: _Array,
    sums: _Array,
) -> None:
    """Replace each group's integers a and b by the best of their neighbours.

    Args:
        groups: float32 [n, size], size 16 or 32.
        weights: float32 [n, size], weights of the squared errors.
        d: float32 [n], scale of the block that each group belongs to.
        dmin: float32 [n], scale of the minimums of that block.
        bounds: float32 [6], the lowest and highest code, a, and b.
        reach_a: How far a may move.
        reach_b: How far b may move.
        pairs: float32 [n, 2], a and b, changed in place.
        sums: float32 [n, 6], output: the error, and the weighted sums of code, code^2, code * x, 1
            and x.
    """
    tile = np.zeros(_TILE, np.float32)
    size = groups.shape[1]
    for first in range(0, len(groups), LANES):
        lanes = min(LANES, len(groups) - first)
        _load(tile, groups, weights, d, dmin, pairs, first, lanes)
        # First the pair itself, clipped to the bounds: its neighbours must beat its error.
        _try_neighbour(tile, size, bounds, ZERO, ZERO)
        for lane in range(LANES):
            tile[_A + lane] = tile[_BEST_A + lane]
            tile[_B + lane] = tile[_BEST_B + lane]
        for to_a in range(-reach_a, reach_a + 1):
            for to_b in range(-reach_b, reach_b + 1):
                if to_a != 0 or to_b != 0:
                    _try_neighbour(tile, size, bounds, np.float32(to_a), np.float32(to_b))
        _accumulate_sums(tile, size, bounds)
        for lane in range(lanes):
            pairs[first + lane, 0] = tile[_BEST_A + lane]
            pairs[first + lane, 1] = tile[_BEST_B + lane]
            sums[first + lane, 0] = tile[_BEST + lane]
            for row in range(5):
                sums[first + lane, 1 + row] = tile[_SUMS + row * LANES + lane]


@compiled
def _load(
    tile: _Array,
    groups: _Array,
    weights: _Array,
    d: _Array,
    dmin: _Array,
    pairs: _Array,
    first: int,
    lanes: int,
) -> None:
    tile[:] = ZERO
    for lane in range(lanes):
        for i in range(groups.shape[1]):
            tile[_X + i * LANES + lane] = groups[first + lane, i]
            tile[_W + i * LANES + lane] = weights[first + lane, i]
        tile[_D + lane] = d[first + lane]
        tile[_DMIN + lane] = dmin[first + lane]
        tile[_A + lane] = pairs[first + lane, 0]
        tile[_B + lane] = pairs[first + lane, 1]
    for lane in range(LANES):
        tile[_BEST_A + lane] = tile[_A + lane]
        tile[_BEST_B + lane] = tile[_B + lane]
        tile[_BEST + lane] = np.float32(np.inf)


@compiled
def _try_neighbour(
    tile: _Array, size: int, bounds: _Array, to_a: np.float32, to_b: np.float32
) -> None:
    """Keep (a + to_a, b + to_b) in the lanes where that has less error."""
    low, high = bounds[0], bounds[1]
    low_a, high_a, low_b, high_b = bounds[2], bounds[3], bounds[4], bounds[5]
    for lane in range(LANES):
        a = min(max(tile[_A + lane] + to_a, low_a), high_a)
        b = min(max(tile[_B + lane] + to_b, low_b), high_b)
        step = tile[_D + lane] * a
        tile[_TRY_A + lane] = a
        tile[_TRY_B + lane] = b
        tile[_STEP + lane] = step
        tile[_OFFSET + lane] = tile[_DMIN + lane] * b
        tile[_INVERSE + lane] = ONE / step if step != ZERO else ZERO
        tile[_ERROR + lane] = ZERO
    # The sizes are literals because only loops with constant bounds are vectorized.
    if size == 16:
        _add_errors(tile, 16, low, high)
    else:
        _add_errors(tile, _GROUP, low, high)
    for lane in range(LANES):
        better = tile[_ERROR + lane] < tile[_BEST + lane]
        tile[_BEST + lane] = tile[_ERROR + lane] if better else tile[_BEST + lane]
        tile[_BEST_A + lane] = tile[_TRY_A + lane] if better else tile[_BEST_A + lane]
        tile[_BEST_B + lane] = tile[_TRY_B + lane] if better else tile[_BEST_B + lane]


@inlined
def _add_errors(tile: _Array, size: int, low: np.float32, high: np.float32) -> None:
    for start in range(0, size, UNROLL):
        for lane in range(LANES):
            step, offset = tile[_STEP + lane], tile[_OFFSET + lane]
            inverse, error = tile[_INVERSE + lane], tile[_ERROR + lane]
            for i in range(UNROLL):
                at = (start + i) * LANES + lane
                shifted = tile[_X + at] + offset
                residual = step * _code(shifted * inverse, low, high) - shifted
                error += tile[_W + at] * (residual * residual)
            tile[_ERROR + lane] = error


@compiled
def _accumulate_sums(tile: _Array, size: int, bounds: _Array) -> None:
    low, high = bounds[0], bounds[1]
    for lane in range(LANES):
        step = tile[_D + lane] * tile[_BEST_A + lane]
        tile[_OFFSET + lane] = tile[_DMIN + lane] * tile[_BEST_B + lane]
        tile[_INVERSE + lane] = ONE / step if step != ZERO else ZERO
    tile[_SUMS:] = ZERO
    for i in range(size):
        for lane in range(LANES):
            x, w = tile[_X + i * LANES + lane], tile[_W + i * LANES + lane]
            code = _code((x + tile[_OFFSET + lane]) * tile[_INVERSE + lane], low, high)
            tile[_SUMS + lane] += w * code
            tile[_SUMS + LANES + lane] += w * code * code
            tile[_SUMS + 2 * LANES + lane] += w * x * code
            tile[_SUMS + 3 * LANES + lane] += w
            tile[_SUMS + 4 * LANES + lane] += w * x


@inlined
def _code(value: Any, low: Any, high: Any) -> Any:
    """Return the nearest code; clipping before rounding makes it right for any magnitude."""
    return np.float32(min(max(value, low), high) + MAGIC) - MAGIC


@compiled
def nearest_in_groups(
    groups: _Array, steps: _Array, offsets: _Array, low: np.float32, high: np.float32, out: _Array
) -> None:
    """Compute the codes of each group for the stored scales, minus `low`.

    Args:
        groups: float32 [n, size].
        steps: float32 [n]; where it is 0 the code nearest to 0 is used.
        offsets: float32 [n]; x is approximately step * code - offset.
        low: Lowest code.
        high: Highest code.
        out: uint8 [n, size], output.
    """
    for group in range(len(groups)):
        inverse = ONE / steps[group] if steps[group] != ZERO else ZERO
        for i in range(groups.shape[1]):
            code = _code((groups[group, i] + offsets[group]) * inverse, low, high)
            out[group, i] = np.uint8(np.int32(code - low))
