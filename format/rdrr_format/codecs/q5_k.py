"""Q5_K: 256 weights as 5-bit codes in eight groups with 6-bit scales and minimums; 176 bytes.

    f16 d | f16 dmin | 12 bytes of scales (see `_scales`) | 32 bytes of fifth bits | 128 of codes

The low four bits are packed as in Q4_K. Bit g of fifth-bit byte l belongs to weight l of group g.
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs.affine import Search, affine_codec
from rdrr_format.codecs.base import Bytes
from rdrr_format.dtypes import DTYPES

SEARCH = Search(-0.5, 0.1, 15)


def _pack(codes: Bytes) -> Bytes:
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little").reshape(-1, 32)
    halves = (codes[:, 0::2] & 15) | (codes[:, 1::2] & 15) << 4
    return np.concatenate([fifth, halves.reshape(len(codes), 128)], axis=1)


def _unpack(packed: Bytes) -> Bytes:
    codes = np.unpackbits(packed[:, None, :32], axis=1, bitorder="little") << np.uint8(4)
    halves = packed[:, 32:].reshape(-1, 4, 32)
    codes[:, 0::2] |= halves & 15
    codes[:, 1::2] |= halves >> 4
    return codes


Q5_K = affine_codec(DTYPES["Q5_K"], 32, SEARCH, _pack, _unpack)
