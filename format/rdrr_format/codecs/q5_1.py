"""Q5_1: 32 weights as 5-bit codes with an f16 scale and an f16 minimum; 24 bytes.

d | m | 4 bytes of fifth bits | 16 bytes of codes (see `_groups32`)        w = d * code + m
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._groups32 import (
    inverse_or_zero,
    pack_fifth_bits,
    pack_nibbles,
    truncated_codes,
    unpack_fifth_bits,
    unpack_nibbles,
)
from rdrr_format.codecs._importance import spread_weights
from rdrr_format.codecs._refine import Form, column_weights, refine, round_codes
from rdrr_format.codecs.affine import WEIGHTED_SEARCH, search_groups
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_bytes, f16_floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q5_1"]
_LARGEST = 31
_FORM = Form(1, (0, _LARGEST), (1, 1), (1, 1), reach=((0, 0),) * 4, signed_floor=True)


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    fit = _plain(rows) if importance is None else _searched(rows, importance)
    return _pack(len(rows), *fit)


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    groups, weights = rows.reshape(-1, 32), column_weights(rows, columns, 32)
    stored = blocks.reshape(-1, 24)
    scale, low = f16_floats(stored[:, 0:2]), f16_floats(stored[:, 2:4])
    fit = refine(groups, weights, _FORM, scale, -low, np.ones((len(groups), 1, 2), np.float32))
    return _pack(len(rows), fit.d, -fit.dmin, round_codes(groups, _FORM, fit))


def _pack(rows: int, scale: Floats, low: Floats, codes: Bytes) -> Bytes:
    parts = [
        f16_bytes(scale, _DTYPE),
        f16_bytes(low, _DTYPE),
        pack_fifth_bits(codes),
        pack_nibbles(codes),
    ]
    return np.concatenate(parts, axis=1).reshape(rows, -1)


def _plain(rows: Floats) -> tuple[Floats, Floats, Bytes]:
    groups = rows.reshape(-1, 32)
    # Of equal elements the first counts, which decides the sign of a zero.
    low = np.take_along_axis(groups, groups.argmin(axis=1)[:, None], axis=1)[:, 0]
    top = np.take_along_axis(groups, groups.argmax(axis=1)[:, None], axis=1)[:, 0]
    scale = (top - low) / np.float32(_LARGEST)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = (groups - low[:, None]) * inverse_or_zero(scale)[:, None] + np.float32(0.5)
    return scale, low, truncated_codes(scaled, _LARGEST)


def _searched(rows: Floats, importance: Floats) -> tuple[Floats, Floats, Bytes]:
    from rdrr_format.codecs._affine_search import affine_codes

    groups = rows.reshape(-1, 32)
    weights = spread_weights(rows, importance, rows.shape[1], factor=1.0).reshape(-1, 32)
    scales, mins, chosen = search_groups(groups, weights, _LARGEST, WEIGHTED_SEARCH)
    codes = np.empty(groups.shape, np.uint8)
    # Steps of 0 keep the codes of the search: ggml does not round this type again.
    nothing = np.zeros_like(scales)
    affine_codes(groups, nothing, nothing, chosen, _LARGEST, codes)
    return scales, -mins, codes


def _dequantize(blocks: Bytes) -> Floats:
    codes = unpack_nibbles(blocks[:, 8:]) | unpack_fifth_bits(blocks[:, 4:8])
    weights = codes.astype(np.float32) * f16_floats(blocks[:, :2])[:, None]
    weights += f16_floats(blocks[:, 2:4])[:, None]
    return weights


Q5_1 = Codec(_DTYPE, _quantize, _dequantize, takes_importance=True, refiner=_refine)
