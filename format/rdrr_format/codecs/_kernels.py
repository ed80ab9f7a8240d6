"""Compiled searches for the scales of K-quants, bit for bit those of ggml.

Importing this module imports numba, so codecs import it inside their quantizers: decoding and
validating never pay for it.

Every sum keeps the order of ggml's loops, no product is fused into an addition (fastmath is off)
and float32 is used throughout. Speed comes from working across groups: `LANES` groups are
transposed into a tile, and each compiled inner loop does the same step for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Groups worked on together: a multiple of every vector width, small enough for the first cache.
LANES = 64

# Added to a float32 of magnitude below 2^22, it leaves the nearest integer (ties to even) in the
# low mantissa bits.
_MAGIC = np.float32(12582912.0)
_TINY = np.float32(1e-15)


def _compiled(function: _Function) -> _Function:
    """Compile lazily, release the GIL, and keep the machine code where a cache can be written."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": False}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no folder to write its cache to
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


@numba.njit(inline="always", error_model="numpy")
def _nearest(value: Any) -> Any:
    # As ggml's: the mantissa bits decide, also for values out of range (they become anything).
    return (np.float32(value + _MAGIC).view(np.int32) & 0x007FFFFF) - 0x00400000


@numba.njit(inline="always", error_model="numpy")
def _code(value: Any, low: Any, high: Any) -> Any:
    return min(max(_nearest(value), low), high)


@_compiled
def search_affine(groups, weights, weighted, nmax, rmin, rdelta, nstep, scales, mins, chosen):  # type: ignore[no-untyped-def]
    """Scale and minimum of each group for codes 0 to nmax (ggml: make_qkx2, make_qkx3).

    Args:
        groups: float32 [n, size].
        weights: float32 [n, size] if weighted, else anything; without, each weight is
            sqrt(mean square) + |x|.
        weighted: Whether weights are given.
        nmax: Largest code.
        rmin: First candidate is (rmin + nmax) / range,
        rdelta: and the next ones this much further,
        nstep: this many steps after the first.
        scales: float32 [n], written.
        mins: float32 [n], written; x is approximately scale * code - min.
        chosen: float32 [n, 2], written: codes are clip(nearest(chosen0 * (x - chosen1))).
    """
    count, size = groups.shape
    x = np.empty((size, LANES), np.float32)
    w = np.empty((size, LANES), np.float32)
    codes = np.empty((size, LANES), np.float32)
    top = np.empty(LANES, np.float32)
    low = np.empty(LANES, np.float32)
    scale = np.empty(LANES, np.float32)
    inverse = np.empty(LANES, np.float32)
    best = np.empty(LANES, np.float32)
    sum_w = np.empty(LANES, np.float32)
    sum_x = np.empty(LANES, np.float32)
    sum_l = np.empty(LANES, np.float32)
    sum_l2 = np.empty(LANES, np.float32)
    sum_xl = np.empty(LANES, np.float32)
    trial = np.empty(LANES, np.float32)
    error = np.empty(LANES, np.float32)
    kept_inverse = np.empty(LANES, np.float32)
    kept_low = np.empty(LANES, np.float32)
    fnmax = np.float32(nmax)
    for first in range(0, count, LANES):
        lanes = min(LANES, count - first)
        x[:] = np.float32(0)
        w[:] = np.float32(0)
        for lane in range(lanes):
            for i in range(size):
                x[i, lane] = groups[first + lane, i]
        if weighted:
            for lane in range(lanes):
                for i in range(size):
                    w[i, lane] = weights[first + lane, i]
        else:
            for lane in range(LANES):
                error[lane] = np.float32(0)
            for i in range(size):
                for lane in range(LANES):
                    error[lane] += x[i, lane] * x[i, lane]
            for lane in range(LANES):
                error[lane] = np.sqrt(error[lane] / np.float32(size))
            for i in range(size):
                for lane in range(LANES):
                    w[i, lane] = error[lane] + abs(x[i, lane])
        for lane in range(LANES):
            low[lane] = x[0, lane]
            top[lane] = x[0, lane]
            sum_w[lane] = w[0, lane]
            sum_x[lane] = w[0, lane] * x[0, lane]
        for i in range(1, size):
            for lane in range(LANES):
                low[lane] = min(low[lane], x[i, lane])
                top[lane] = max(top[lane], x[i, lane])
                sum_w[lane] += w[i, lane]
                sum_x[lane] += w[i, lane] * x[i, lane]
        for lane in range(LANES):
            low[lane] = min(low[lane], np.float32(0))
            inverse[lane] = fnmax / (top[lane] - low[lane])
            scale[lane] = np.float32(1) / inverse[lane]
            kept_inverse[lane] = inverse[lane]
            kept_low[lane] = low[lane]
            best[lane] = np.float32(0)
        for i in range(size):
            for lane in range(LANES):
                code = np.float32(_code(inverse[lane] * (x[i, lane] - low[lane]), 0, nmax))
                miss = scale[lane] * code + low[lane] - x[i, lane]
                best[lane] += w[i, lane] * (miss * miss)
        for lane in range(LANES):
            if top[lane] <= low[lane]:  # nothing to search: all codes 0, and no error is lower
                scale[lane] = np.float32(0)
                kept_inverse[lane] = np.float32(0)
                kept_low[lane] = np.float32(0)
                best[lane] = -np.float32(np.inf)
        for step in range(nstep + 1):
            numerator = rmin + rdelta * np.float32(step) + fnmax
            for lane in range(LANES):
                inverse[lane] = numerator / (top[lane] - low[lane])
                sum_l[lane] = np.float32(0)
                sum_l2[lane] = np.float32(0)
                sum_xl[lane] = np.float32(0)
                error[lane] = np.float32(0)
            for i in range(size):
                for lane in range(LANES):
                    code = np.float32(_code(inverse[lane] * (x[i, lane] - low[lane]), 0, nmax))
                    codes[i, lane] = code
                    weighed = w[i, lane] * code
                    sum_l[lane] += weighed
                    sum_l2[lane] += weighed * code
                    sum_xl[lane] += weighed * x[i, lane]
            for lane in range(LANES):
                # sum_l and sum_l2 become the trial scale and minimum.
                spread = sum_w[lane] * sum_l2[lane] - sum_l[lane] * sum_l[lane]
                slope = (sum_w[lane] * sum_xl[lane] - sum_x[lane] * sum_l[lane]) / spread
                floor = (sum_l2[lane] * sum_x[lane] - sum_l[lane] * sum_xl[lane]) / spread
                if floor > np.float32(0):
                    slope = sum_xl[lane] / sum_l2[lane]
                    floor = np.float32(0)
                trial[lane] = slope
                sum_l[lane] = floor
                sum_l2[lane] = spread
            for i in range(size):
                for lane in range(LANES):
                    miss = trial[lane] * codes[i, lane] + sum_l[lane] - x[i, lane]
                    error[lane] += w[i, lane] * (miss * miss)
            for lane in range(LANES):
                if sum_l2[lane] > np.float32(0) and error[lane] < best[lane]:
                    best[lane] = error[lane]
                    scale[lane] = trial[lane]
                    kept_inverse[lane] = inverse[lane]
                    kept_low[lane] = low[lane]
                    # ggml overwrites the minimum: later steps round against the new one.
                    low[lane] = sum_l[lane]
        for lane in range(lanes):
            scales[first + lane] = scale[lane]
            mins[first + lane] = -low[lane]
            chosen[first + lane, 0] = kept_inverse[lane]
            chosen[first + lane, 1] = kept_low[lane]


@_compiled
def affine_codes(groups, steps, offsets, chosen, nmax, out):  # type: ignore[no-untyped-def]
    """Codes of each group for the stored scales.

    Args:
        groups: float32 [n, size].
        steps: float32 [n], stored scale of each group.
        offsets: float32 [n], stored minimum; x is approximately step * code - offset.
        chosen: float32 [n, 2] of the search, which decides where the stored scale is 0.
        nmax: Largest code.
        out: uint8 [n, size], written.
    """
    for group in range(groups.shape[0]):
        step, offset = steps[group], offsets[group]
        if step != np.float32(0):
            for i in range(groups.shape[1]):
                out[group, i] = _code((groups[group, i] + offset) / step, 0, nmax)
        else:
            inverse, low = chosen[group, 0], chosen[group, 1]
            for i in range(groups.shape[1]):
                out[group, i] = _code(inverse * (groups[group, i] - low), 0, nmax)


@_compiled
def search_signed(groups, weights, weighted, nmax, scales, chosen):  # type: ignore[no-untyped-def]
    """Scale of each group for codes -nmax to nmax - 1 (ggml: make_qx_quants, rmse type 1).

    Args:
        groups: float32 [n, size].
        weights: float32 [n, size] if weighted, else anything; without, each weight is x * x.
        weighted: Whether weights are given.
        nmax: Codes run from -nmax to nmax - 1.
        scales: float32 [n], written; 0 for a group of zeros.
        chosen: float32 [n], written: codes are clip(nearest(chosen * x)).
    """
    count, size = groups.shape
    x = np.empty((size, LANES), np.float32)
    w = np.empty((size, LANES), np.float32)
    wx = np.empty((size, LANES), np.float32)
    peak = np.empty(LANES, np.float32)
    scale = np.empty(LANES, np.float32)
    inverse = np.empty(LANES, np.float32)
    best = np.empty(LANES, np.float32)
    sum_xl = np.empty(LANES, np.float32)
    sum_l2 = np.empty(LANES, np.float32)
    kept = np.empty(LANES, np.float32)
    fnmax = np.float32(nmax)
    for first in range(0, count, LANES):
        lanes = min(LANES, count - first)
        x[:] = np.float32(0)
        w[:] = np.float32(0)
        for lane in range(lanes):
            for i in range(size):
                x[i, lane] = groups[first + lane, i]
        if weighted:
            for lane in range(lanes):
                for i in range(size):
                    w[i, lane] = weights[first + lane, i]
        else:
            for i in range(size):
                for lane in range(LANES):
                    w[i, lane] = x[i, lane] * x[i, lane]
        for lane in range(LANES):
            peak[lane] = np.float32(0)
        for i in range(size):
            for lane in range(LANES):
                wx[i, lane] = w[i, lane] * x[i, lane]
                peak[lane] = x[i, lane] if abs(x[i, lane]) > abs(peak[lane]) else peak[lane]
        for step in range(-10, 10):
            # Step -10 stands for the plain scale, which ggml tries first and takes regardless.
            if step == 0:
                continue
            plain = step == -10
            numerator = -(fnmax if plain else fnmax + np.float32(0.1) * np.float32(step))
            for lane in range(LANES):
                inverse[lane] = numerator / peak[lane]
                sum_xl[lane] = np.float32(0)
                sum_l2[lane] = np.float32(0)
            for i in range(size):
                for lane in range(LANES):
                    code = np.float32(_code(inverse[lane] * x[i, lane], -nmax, nmax - 1))
                    sum_xl[lane] += wx[i, lane] * code
                    sum_l2[lane] += w[i, lane] * code * code
            for lane in range(LANES):
                found = sum_l2[lane] > np.float32(0)
                ratio = sum_xl[lane] / sum_l2[lane]
                if plain:
                    scale[lane] = ratio if found else np.float32(0)
                    best[lane] = scale[lane] * sum_xl[lane]
                    kept[lane] = inverse[lane]
                elif found and sum_xl[lane] * sum_xl[lane] > best[lane] * sum_l2[lane]:
                    scale[lane] = ratio
                    best[lane] = ratio * sum_xl[lane]
                    kept[lane] = inverse[lane]
        for lane in range(lanes):
            silent = abs(peak[lane]) < _TINY
            scales[first + lane] = np.float32(0) if silent else scale[lane]
            chosen[first + lane] = np.float32(0) if silent else kept[lane]


@_compiled
def signed_codes(groups, steps, chosen, nmax, out):  # type: ignore[no-untyped-def]
    """Codes of each group for the stored scales, shifted to 0 to 2 * nmax - 1.

    Args:
        groups: float32 [n, size].
        steps: float32 [n], stored scale of each group.
        chosen: float32 [n] of the search, which decides where the stored scale is 0.
        nmax: Codes run from -nmax to nmax - 1.
        out: uint8 [n, size], written.
    """
    for group in range(groups.shape[0]):
        step, inverse = steps[group], chosen[group]
        if step != np.float32(0):
            for i in range(groups.shape[1]):
                out[group, i] = _code(groups[group, i] / step, -nmax, nmax - 1) + nmax
        else:
            for i in range(groups.shape[1]):
                out[group, i] = _code(inverse * groups[group, i], -nmax, nmax - 1) + nmax


@_compiled
def fit_scales(values, weights, nmax, codes, scales):  # type: ignore[no-untyped-def]
    """Codes 0 to nmax of a few non-negative values under one scale (ggml: make_qp_quants).

    Args:
        values: float32 [n, size], the scales or minimums of a block's groups.
        weights: float32 [n, size].
        nmax: Largest code.
        codes: uint8 [n, size], written.
        scales: float32 [n], written; values are approximately scale * code.
    """
    for row in range(values.shape[0]):
        scales[row] = _fit_scale(values[row], weights[row], nmax, codes[row])


@numba.njit(error_model="numpy", nogil=True)
def _fit_scale(x, w, nmax, codes):  # type: ignore[no-untyped-def]
    size = x.shape[0]
    fnmax = np.float32(nmax)
    peak = np.float32(0)
    for i in range(size):
        peak = max(peak, x[i])
    if peak < _TINY:
        codes[:] = 0
        return np.float32(0)
    inverse = fnmax / peak
    best = np.float32(0)
    for step in range(-5, 5):
        if step == 0:
            continue
        # Step -5 stands for the plain scale, tried first; its codes are not clipped.
        plain = step == -5
        trial = inverse if plain else (np.float32(0.1) * np.float32(step) + fnmax) / peak
        width = np.float32(1) / trial
        error = np.float32(0)
        for i in range(size):
            code = _nearest(trial * x[i])
            if not plain:
                code = min(code, nmax)
            miss = x[i] - width * np.float32(code)
            error += w[i] * miss * miss
        if plain or error < best:
            best = error
            inverse = trial
    sum_xl = np.float32(0)
    sum_l2 = np.float32(0)
    for i in range(size):
        codes[i] = min(_nearest(inverse * x[i]), nmax)
        code = np.float32(codes[i])
        sum_xl += w[i] * x[i] * code
        sum_l2 += w[i] * code * code
    for _ in range(5):
        changed = False
        for i in range(size):
            code = np.float32(codes[i])
            rest_xl = sum_xl - w[i] * x[i] * code
            rest_l2 = sum_l2 - w[i] * code * code
            if rest_xl > np.float32(0) and rest_l2 > np.float32(0):
                moved = min(_nearest(x[i] * rest_l2 / rest_xl), nmax)
                if moved != np.int32(codes[i]):
                    rest_xl += w[i] * x[i] * np.float32(moved)
                    rest_l2 += w[i] * np.float32(moved) * np.float32(moved)
                    if rest_xl * rest_xl * sum_l2 > sum_xl * sum_xl * rest_l2:
                        codes[i] = moved
                        sum_xl = rest_xl
                        sum_l2 = rest_l2
                        changed = True
        if not changed:
            break
    return sum_xl / sum_l2 if sum_l2 > np.float32(0) else np.float32(0)
