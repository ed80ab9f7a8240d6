"""F16: IEEE half precision, rounded to nearest even.

Values of magnitude 65520 and above round to infinity, as IEEE says. Whoever must not let that
happen asks `f16_overflow_count` first and stores the tensor in F32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.base import Bytes, Codec, Floats
from rdrr_format.dtypes import DTYPES

# Halfway between the largest half (65504) and the next power of two; ties go to even: infinity.
_FIRST_INFINITE = np.float32(65520.0)


def f16_overflow_count(array: npt.ArrayLike) -> int:
    """How many finite values would become infinity as F16.

    Args:
        array: Any shape, float32 or float64.
    """
    values = np.asarray(array)
    too_large = np.abs(values) >= _FIRST_INFINITE
    return int(np.count_nonzero(too_large & np.isfinite(values)))


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    del importance
    with np.errstate(over="ignore"):
        return rows.astype("<f2").view(np.uint8)


def _dequantize(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


F16 = Codec(DTYPES["F16"], _quantize, _dequantize)
