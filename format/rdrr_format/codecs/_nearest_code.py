"""Compiled rounding of Q8_0, which needs no search; see `_compiled` for how things compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.compiled import ONE, ZERO, compiled

_Array = npt.NDArray[Any]

_GROUP = 32
_HALF = np.float32(0.5)
_LARGEST = np.float32(127)


@compiled
def nearest_codes(groups: _Array, scales: _Array, codes: _Array) -> None:
    """Scale and codes of each group, the largest magnitude at 127, halves away from zero.

    Args:
        groups: float32 [n, 32].
        scales: float32 [n], written.
        codes: int8 [n, 32], written.
    """
    for group in range(len(groups)):
        peak = ZERO
        for i in range(_GROUP):
            peak = max(peak, abs(groups[group, i]))
        scale = peak / _LARGEST
        inverse = ONE / scale
        scales[group] = scale
        # A scale of zero, or one so small that its inverse overflows: ggml's codes are 0 then.
        usable = np.isfinite(inverse)
        for i in range(_GROUP):
            value = groups[group, i] * inverse if usable else ZERO
            whole = np.trunc(value)
            # The fraction is exact; adding 0.5 before truncating would round 0.49999997 up.
            away = ONE if value >= ZERO else -ONE
            codes[group, i] = np.int8(whole + (away if abs(value - whole) >= _HALF else ZERO))
