"""BF16: the upper half of a float32, rounded to nearest, ties to even; held as uint16.

NumPy has no BF16 type, so the conversions work on bit patterns. They are public.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs.base import Bytes, Codec, Floats
from rdrr_format.dtypes import DTYPES


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> Floats:
    """Convert BF16 bit patterns to float32, exactly."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to the nearest BF16 bit patterns, ties to even; NaN becomes a quiet NaN."""
    floats = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values))
    bits = floats.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    # Add just under half of the dropped part, plus 1 if the kept part is odd. The sum overflows
    # only for NaN, which is replaced below.
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(floats), quiet, rounded).astype(np.uint16)


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    del importance
    return f32_to_bf16(rows).astype("<u2", copy=False).view(np.uint8)


def _dequantize(blocks: Bytes) -> Floats:
    return bf16_to_f32(blocks.view("<u2"))


BF16 = Codec(DTYPES["BF16"], _quantize, _dequantize)
