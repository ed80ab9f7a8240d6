"""F16: IEEE half precision, rounded to nearest, ties to even.

Values of magnitude 65520 and above round to infinity, as IEEE 754 demands. Callers that must avoid
that call `f16_overflow_count` first and store the tensor as F32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.base import Bytes, Codec, Floats
from rdrr_format.dtypes import DTYPES, F16_OVERFLOW

# Halfway between the largest f16 (65504) and 65536; the tie rounds to even, which is infinity.
_FIRST_INFINITE = np.float32(F16_OVERFLOW)


def f16_overflow_count(array: npt.ArrayLike) -> int:
    """Return how many finite values would become infinity as F16.

    Args:
        array: float32 or float64 of any shape.
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
