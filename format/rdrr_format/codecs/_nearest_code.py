"""Compiled quantization to Q8_0, which needs no search; see `rdrr_format.codecs.compiled`."""

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
    """Compute the scale and the codes of each group.

    The largest magnitude gets the code 127 or -127, and halves round away from zero.

    Args:
        groups: float32 [n, 32].
        scales: float32 [n], output.
        codes: int8 [n, 32], output.
    """
    for group in range(len(groups)):
        peak = ZERO
        for i in range(_GROUP):
            peak = max(peak, abs(groups[group, i]))
        scale = peak / _LARGEST
        inverse = ONE / scale
        scales[group] = scale
        # ggml gives codes of 0 if the scale is zero or so small that its inverse overflows.
        usable = np.isfinite(inverse)
        for i in range(_GROUP):
            value = groups[group, i] * inverse if usable else ZERO
            whole = np.trunc(value)
            # The fraction is exact; adding 0.5 and truncating would round 0.49999997 up.
            away = ONE if value >= ZERO else -ONE
            codes[group, i] = np.int8(whole + (away if abs(value - whole) >= _HALF else ZERO))
