"""Q5_1: 32 weights as 5-bit codes with an f16 scale and an f16 minimum; 24 bytes.

d | m | 4 bytes of fifth bits | 16 bytes of codes (see `_groups32`)        w = d * code + m
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._groups32 import (
    pack_fifth_bits,
    pack_nibbles,
    unpack_fifth_bits,
    unpack_nibbles,
)
from rdrr_format.codecs._minimums32 import (
    dequantize_with_minimum,
    quantize_with_minimum,
    refine_with_minimum,
)
from rdrr_format.codecs.base import Bytes, Codec, Floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q5_1"]


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    return _pack(len(rows), *quantize_with_minimum(rows, importance, 31, _DTYPE))


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    factors = blocks.reshape(-1, 24)[:, :4]
    return _pack(len(rows), *refine_with_minimum(rows, columns, factors, 31, _DTYPE))


def _pack(rows: int, factors: Bytes, codes: Bytes) -> Bytes:
    parts = [factors, pack_fifth_bits(codes), pack_nibbles(codes)]
    return np.concatenate(parts, axis=1).reshape(rows, -1)


def _recode(blocks: Bytes, codes: Bytes) -> Bytes:
    return _pack(len(blocks), blocks[:, :4], codes)


def _dequantize(blocks: Bytes) -> Floats:
    codes = unpack_nibbles(blocks[:, 8:]) | unpack_fifth_bits(blocks[:, 4:8])
    return dequantize_with_minimum(blocks, codes)


Q5_1 = Codec(
    _DTYPE,
    _quantize,
    _dequantize,
    takes_importance=True,
    refiner=_refine,
    levels=32,
    recoder=_recode,
    scales=(0, 2),
)
