"""Q4_1: 32 weights as 4-bit codes with an f16 scale and an f16 minimum; 20 bytes.

d | m | 16 bytes of codes (see `_groups32`)        w = d * code + m
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._groups32 import pack_nibbles, unpack_nibbles
from rdrr_format.codecs._minimums32 import (
    dequantize_with_minimum,
    quantize_with_minimum,
    refine_with_minimum,
)
from rdrr_format.codecs.base import Bytes, Codec, Floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q4_1"]


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    return _pack(len(rows), *quantize_with_minimum(rows, importance, 15, _DTYPE))


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    factors = blocks.reshape(-1, 20)[:, :4]
    return _pack(len(rows), *refine_with_minimum(rows, columns, factors, 15, _DTYPE))


def _pack(rows: int, factors: Bytes, codes: Bytes) -> Bytes:
    return np.concatenate([factors, pack_nibbles(codes)], axis=1).reshape(rows, -1)


def _recode(blocks: Bytes, codes: Bytes) -> Bytes:
    return _pack(len(blocks), blocks[:, :4], codes)


def _dequantize(blocks: Bytes) -> Floats:
    return dequantize_with_minimum(blocks, unpack_nibbles(blocks[:, 4:]))


Q4_1 = Codec(
    _DTYPE,
    _quantize,
    _dequantize,
    takes_importance=True,
    refiner=_refine,
    levels=16,
    recoder=_recode,
    scales=(0, 2),
)
