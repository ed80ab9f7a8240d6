"""Q8_0: 32 weights as int8 with one f16 scale; 34 bytes.

    d | q[32]        w = d * q        d = max|w| / 127

The bytes equal those of ggml's reference implementation: the codes are computed with the scale
before it is rounded to f16, and halves round away from zero.
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._groups32 import refine_signed
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_bytes, f16_floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q8_0"]


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    del importance
    from rdrr_format.codecs._nearest_code import nearest_codes

    groups = rows.reshape(-1, 32)
    scales = np.empty(len(groups), np.float32)
    codes = np.empty(groups.shape, np.int8)
    nearest_codes(groups, scales, codes)
    out = np.empty((len(groups), 34), np.uint8)
    out[:, :2] = f16_bytes(scales, _DTYPE)
    out[:, 2:] = codes.view(np.uint8)
    return out.reshape(len(rows), -1)


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    scales, codes = refine_signed(rows, columns, blocks.reshape(-1, 34)[:, :2], (-127, 127), _DTYPE)
    centred = (codes.astype(np.int16) - 127).astype(np.int8)
    return np.concatenate([scales, centred.view(np.uint8)], axis=1).reshape(len(rows), -1)


def _recode(blocks: Bytes, codes: Bytes) -> Bytes:
    return np.concatenate([blocks[:, :2], codes - np.uint8(127)], axis=1)


def _dequantize(blocks: Bytes) -> Floats:
    return f16_floats(blocks[:, :2])[:, None] * blocks[:, 2:].view(np.int8).astype(np.float32)


Q8_0 = Codec(
    _DTYPE, _quantize, _dequantize, refiner=_refine, levels=255, recoder=_recode, scales=(0,)
)
