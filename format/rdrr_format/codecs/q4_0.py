"""Q4_0: 32 weights as 4-bit codes with one f16 scale; 18 bytes.

d | 16 bytes of codes (see `_groups32`)        w = d * (code - 8)
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._groups32 import (
    pack_nibbles,
    quantize_signed,
    refine_signed,
    unpack_nibbles,
)
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q4_0"]


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    return _pack(len(rows), *quantize_signed(rows, importance, 8, _DTYPE))


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    scales = blocks.reshape(-1, 18)[:, :2]
    return _pack(len(rows), *refine_signed(rows, columns, scales, (-8, 7), _DTYPE, (1.0, 0.9, 0.8)))


def _pack(rows: int, scales: Bytes, codes: Bytes) -> Bytes:
    return np.concatenate([scales, pack_nibbles(codes)], axis=1).reshape(rows, -1)


def _recode(blocks: Bytes, codes: Bytes) -> Bytes:
    return _pack(len(blocks), blocks[:, :2], codes)


def _dequantize(blocks: Bytes) -> Floats:
    codes = unpack_nibbles(blocks[:, 2:]).astype(np.float32)
    return (codes - np.float32(8)) * f16_floats(blocks[:, :2])[:, None]


Q4_0 = Codec(
    _DTYPE,
    _quantize,
    _dequantize,
    takes_importance=True,
    refiner=_refine,
    levels=16,
    recoder=_recode,
    scales=(0,),
)
