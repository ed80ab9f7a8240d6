"""Q5_K: 256 weights as 5-bit codes in eight groups with 6-bit scales and minimums; 176 bytes.

    f16 d | f16 dmin | 12 bytes of scales (see `_scales`) | 32 bytes of fifth bits | 128 of codes

The low four bits are packed as in Q4_K. Bit g of fifth-bit byte l belongs to weight l of group g.
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._scales import unpack_scales
from rdrr_format.codecs.affine import Search, quantize_affine, refine_affine
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q5_K"]
SEARCH = Search(-0.5, 0.1, 15)


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    return _pack(len(rows), *quantize_affine(rows, importance, 31, SEARCH, _DTYPE))


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    head = blocks.reshape(-1, 176)[:, :16]
    return _pack(len(rows), *refine_affine(rows, columns, head, 31, _DTYPE))


def _pack(rows: int, head: Bytes, codes: Bytes) -> Bytes:
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little").reshape(-1, 32)
    halves = (codes[:, 0::2] & 15) | (codes[:, 1::2] & 15) << 4
    parts = [head, fifth, halves.reshape(len(head), 128)]
    return np.concatenate(parts, axis=1).reshape(rows, -1)


def _recode(blocks: Bytes, codes: Bytes) -> Bytes:
    return _pack(len(blocks), blocks[:, :16], codes.reshape(-1, 8, 32))


def _dequantize(blocks: Bytes) -> Floats:
    scales, mins = unpack_scales(blocks[:, 4:16])
    steps = f16_floats(blocks[:, 0:2])[:, None] * scales
    offsets = f16_floats(blocks[:, 2:4])[:, None] * mins
    codes = np.unpackbits(blocks[:, None, 16:48], axis=1, bitorder="little") << 4
    halves = blocks[:, 48:].reshape(-1, 4, 32)
    codes[:, 0::2] |= halves & 15
    codes[:, 1::2] |= halves >> 4
    weights = codes.astype(np.float32)
    weights *= steps[:, :, None]
    weights -= offsets[:, :, None]
    return weights.reshape(len(blocks), 256)


Q5_K = Codec(
    _DTYPE,
    _quantize,
    _dequantize,
    takes_importance=True,
    refiner=_refine,
    levels=32,
    recoder=_recode,
    scales=(0, 2),
)
