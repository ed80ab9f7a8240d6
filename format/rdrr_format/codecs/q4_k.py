"""Q4_K: 256 weights as 4-bit codes in eight groups with 6-bit scales and minimums; 144 bytes.

    f16 d | f16 dmin | 12 bytes of scales (see `_scales`) | 128 bytes of codes

Code byte 32c + l holds weight 64c + l in its low half and weight 64c + 32 + l in its high half.
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._scales import unpack_scales
from rdrr_format.codecs.affine import Search, quantize_affine, refine_affine
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q4_K"]
SEARCH = Search(-1.0, 0.1, 20)


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    return _pack(len(rows), *quantize_affine(rows, importance, 15, SEARCH, _DTYPE))


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    head = blocks.reshape(-1, 144)[:, :16]
    return _pack(len(rows), *refine_affine(rows, columns, head, 15, _DTYPE))


def _pack(rows: int, head: Bytes, codes: Bytes) -> Bytes:
    halves = codes[:, 0::2] | codes[:, 1::2] << 4
    out = np.concatenate([head, halves.reshape(len(head), 128)], axis=1)
    return out.reshape(rows, -1)


def _recode(blocks: Bytes, codes: Bytes) -> Bytes:
    return _pack(len(blocks), blocks[:, :16], codes.reshape(-1, 8, 32))


def _dequantize(blocks: Bytes) -> Floats:
    scales, mins = unpack_scales(blocks[:, 4:16])
    steps = f16_floats(blocks[:, 0:2])[:, None] * scales
    offsets = f16_floats(blocks[:, 2:4])[:, None] * mins
    halves = blocks[:, 16:].reshape(-1, 4, 32)
    weights = np.empty((len(blocks), 8, 32), np.float32)
    weights[:, 0::2] = halves & 15
    weights[:, 1::2] = halves >> 4
    weights *= steps[:, :, None]
    weights -= offsets[:, :, None]
    return weights.reshape(len(blocks), 256)


Q4_K = Codec(
    _DTYPE,
    _quantize,
    _dequantize,
    takes_importance=True,
    refiner=_refine,
    levels=16,
    recoder=_recode,
    scales=(0, 2),
)
