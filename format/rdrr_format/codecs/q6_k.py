"""Q6_K: 256 weights as 6-bit codes in sixteen groups with int8 scales; 210 bytes.

    128 bytes of low 4 bits | 64 bytes of high 2 bits | int8 scales[16] | f16 d

    w = d * scale_i * (code - 32)

Each half of 128 weights consists of four runs of 32. Low byte l holds weight l of runs 0 and 2, low
byte 32 + l that of runs 1 and 3, and high byte l that of all four runs, two bits each.
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._refine import Form, column_weights, refine, round_codes
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_bytes, f16_floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["Q6_K"]
_FORM = Form(16, (-32, 31), (-128, 127), (0, 0), reach=((4, 0), (2, 0), (1, 0)))
_TINY = np.float32(1e-15)  # a block whose largest scale is smaller is stored as zeros


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    from rdrr_format.codecs._signed_search import search_signed, signed_codes

    groups = rows.reshape(-1, 16)
    weights = np.empty((0, 0), np.float32)
    if importance is not None:
        # For this type ggml takes the importance alone, without the magnitudes of the weights.
        weights = np.broadcast_to(importance, rows.shape).reshape(-1, 16)
    scales, chosen = np.empty(len(groups), np.float32), np.empty(len(groups), np.float32)
    search_signed(groups, weights, importance is not None, 32, scales, chosen)

    by_block = scales.reshape(-1, 16)
    peak = np.take_along_axis(by_block, np.abs(by_block).argmax(axis=1)[:, None], axis=1)
    is_zero = np.abs(peak) < _TINY
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(is_zero, np.float32(0), np.float32(-128) / peak)
        step = np.where(is_zero, np.float32(0), np.float32(1) / inverse)
    out = np.empty((len(by_block), 210), np.uint8)
    out[:, 208:210] = f16_bytes(step[:, 0], _DTYPE)
    # The largest scale gets -128; one as large with the other sign would get 128.
    scale_codes = np.minimum(np.rint(inverse * by_block), np.float32(127)).astype(np.int8)
    out[:, 192:208] = scale_codes.view(np.uint8)
    steps = f16_floats(out[:, 208:210])[:, None] * scale_codes.astype(np.float32)
    codes = np.empty(groups.shape, np.uint8)
    signed_codes(groups, steps.reshape(-1), chosen, 32, codes)
    out[:, :192] = _pack(codes.reshape(-1, 2, 4, 32))
    out[is_zero[:, 0]] = 0
    return out.reshape(len(rows), -1)


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    groups = rows.reshape(-1, 16)
    stored = blocks.reshape(-1, 210)
    d = f16_floats(stored[:, 208:210])
    scales = stored[:, 192:208].view(np.int8).astype(np.float32)
    pairs = np.stack([scales, np.zeros_like(scales)], axis=2)
    weights = column_weights(rows, columns, 16)
    fit = refine(groups, weights, _FORM, d, np.zeros_like(d), pairs)
    codes = _pack(round_codes(groups, _FORM, fit).reshape(-1, 2, 4, 32))
    parts = [codes, fit.pairs[:, :, 0].astype(np.int8).view(np.uint8), f16_bytes(fit.d, _DTYPE)]
    return np.concatenate(parts, axis=1).reshape(len(rows), -1)


def _pack(codes: Bytes) -> Bytes:
    """Pack codes [blocks, 2 halves, 4 runs, 32] to bytes [blocks, 192]."""
    low = (codes[:, :, 0:2] & 15) | (codes[:, :, 2:4] & 15) << 4
    top = codes >> 4
    high = top[:, :, 0] | top[:, :, 1] << 2 | top[:, :, 2] << 4 | top[:, :, 3] << 6
    return np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64)], axis=1)


def _recode(blocks: Bytes, codes: Bytes) -> Bytes:
    return np.concatenate([_pack(codes.reshape(-1, 2, 4, 32)), blocks[:, 192:]], axis=1)


def _dequantize(blocks: Bytes) -> Floats:
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    codes = np.empty((len(blocks), 2, 4, 32), np.uint8)
    codes[:, :, 0:2] = low & 15
    codes[:, :, 2:4] = low >> 4
    for run in range(4):
        codes[:, :, run] |= (high[:, :, 0] >> 2 * run & 3) << 4
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    steps = f16_floats(blocks[:, 208:210])[:, None] * scales
    weights = (codes.astype(np.float32) - np.float32(32)).reshape(-1, 16, 16)
    weights *= steps[:, :, None]
    return weights.reshape(len(blocks), 256)


Q6_K = Codec(
    _DTYPE,
    _quantize,
    _dequantize,
    takes_importance=True,
    refiner=_refine,
    levels=64,
    recoder=_recode,
    scales=(208,),
)
