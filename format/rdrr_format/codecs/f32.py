"""F32: the weights as they are, little endian."""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs.base import Bytes, Codec, Floats
from rdrr_format.dtypes import DTYPES


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    del importance
    return rows.astype("<f4", copy=False).view(np.uint8)


def _dequantize(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32, copy=False)


F32 = Codec(DTYPES["F32"], _quantize, _dequantize)
