"""Q4_K: 256 weights as 4-bit codes in eight groups with 6-bit scales and minimums; 144 bytes.

    f16 d | f16 dmin | 12 bytes of scales (see `_scales`) | 128 bytes of codes

Code byte 32c + l holds weight 64c + l in its low half and weight 64c + 32 + l in its high half.
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs.affine import Search, affine_codec
from rdrr_format.codecs.base import Bytes
from rdrr_format.dtypes import DTYPES

SEARCH = Search(-1.0, 0.1, 20)


def _pack(codes: Bytes) -> Bytes:
    return (codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)).reshape(len(codes), 128)


def _unpack(packed: Bytes) -> Bytes:
    halves = packed.reshape(-1, 4, 32)
    codes = np.empty((len(halves), 8, 32), np.uint8)
    codes[:, 0::2] = halves & 15
    codes[:, 1::2] = halves >> 4
    return codes


Q4_K = affine_codec(DTYPES["Q4_K"], 16, SEARCH, _pack, _unpack)
