"""Q5_0: 32 weights as 5-bit codes with one f16 scale; 22 bytes.

d | 4 bytes of fifth bits | 16 bytes of codes (see `_groups32`)        w = d * (code - 16)
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._groups32 import (
    pack_fifth_bits,
    pack_nibbles,
    quantize_signed,
    refine_signed,
    unpack_fifth_bits,
    unpack_nibbles,
)
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q5_0"]


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    return _pack(len(rows), *quantize_signed(rows, importance, 16, _DTYPE))


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    scales = blocks.reshape(-1, 22)[:, :2]
    return _pack(len(rows), *refine_signed(rows, columns, scales, (-16, 15), _DTYPE, (1.0, 0.94)))


def _pack(rows: int, scales: Bytes, codes: Bytes) -> Bytes:
    parts = [scales, pack_fifth_bits(codes), pack_nibbles(codes)]
    return np.concatenate(parts, axis=1).reshape(rows, -1)


def _recode(blocks: Bytes, codes: Bytes) -> Bytes:
    return _pack(len(blocks), blocks[:, :2], codes)


def _dequantize(blocks: Bytes) -> Floats:
    codes = unpack_nibbles(blocks[:, 6:]) | unpack_fifth_bits(blocks[:, 2:6])
    centred = codes.astype(np.float32) - np.float32(16)
    return centred * f16_floats(blocks[:, :2])[:, None]


Q5_0 = Codec(
    _DTYPE,
    _quantize,
    _dequantize,
    takes_importance=True,
    refiner=_refine,
    levels=32,
    recoder=_recode,
    scales=(0,),
)
