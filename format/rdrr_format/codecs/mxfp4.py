"""MXFP4: 32 weights as 4-bit floats with one power of two as scale; 17 bytes.

e | 16 bytes of codes (see `_groups32`)        w = 2^(e - 128) * value[code]

A code has a sign, two exponent bits and one mantissa bit (E2M1), and `VALUES` holds twice the float
that it stands for, which is an integer. The exponent has 8 bits (E8M0). Source: OCP Microscaling
Formats specification 1.0. The arrangement of the bytes is that of ggml.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rdrr_format.codecs._groups32 import pack_nibbles, unpack_nibbles
from rdrr_format.codecs._refine import column_weights
from rdrr_format.codecs.base import Bytes, Codec, Floats
from rdrr_format.dtypes import DTYPES

_DTYPE = DTYPES["MXFP4"]

VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the value of each code."""

_MAGNITUDES = np.array(VALUES[:8], np.float64)
_BETWEEN = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2
_BIAS = 128
_LARGEST = 254
"""The largest exponent; 255 stands for NaN in the specification."""

Exponents = npt.NDArray[np.int64]


def _quantize(rows: Floats, importance: Floats | None) -> Bytes:
    del importance
    groups = rows.reshape(-1, 32)
    return _pack(len(rows), groups, _exponents(groups))


def _exponents(groups: Floats) -> Exponents:
    """Return the exponents with which the largest magnitude of each group is 8 to 16 steps.

    Where the logarithm is a whole number only after rounding to f32, ggml takes that number.
    """
    peak = np.abs(groups).max(axis=1).astype(np.float64)
    with np.errstate(divide="ignore"):
        whole = np.floor(np.log2(peak).astype(np.float32))
    nearest = np.clip(whole - 3 + _BIAS, 0, _LARGEST)
    return np.where(peak > 0, nearest, 0).astype(np.int64)


def _codes(groups: Floats, exponents: Exponents) -> Bytes:
    """Return the code nearest to each weight; the smaller magnitude wins a tie."""
    steps = np.ldexp(np.abs(groups).astype(np.float64), (_BIAS - exponents)[:, None])
    codes = np.searchsorted(_BETWEEN, steps).astype(np.uint8)
    # A negative weight that rounds to zero is stored as +0, although -0 has a code too.
    negative = (groups < 0) & (codes > 0)
    return codes | negative.astype(np.uint8) << np.uint8(3)


def _pack(rows: int, groups: Floats, exponents: Exponents) -> Bytes:
    stored = exponents.astype(np.uint8)[:, None]
    codes = pack_nibbles(_codes(groups, exponents))
    return np.concatenate([stored, codes], axis=1).reshape(rows, -1)


def _refine(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
    """Choose between ggml's exponent and its neighbours by the weighted squared error."""
    groups, weights = rows.reshape(-1, 32), column_weights(rows, columns, 32)
    first = blocks.reshape(-1, 17)[:, 0].astype(np.int64)
    best, least = first, _errors(groups, weights, first)
    for step in (-1, 1):
        other = np.clip(first + step, 0, _LARGEST)
        errors = _errors(groups, weights, other)
        best, least = np.where(errors < least, other, best), np.minimum(errors, least)
    return _pack(len(rows), groups, best)


def _errors(groups: Floats, weights: Floats, exponents: Exponents) -> npt.NDArray[np.float64]:
    decoded = _decode(_codes(groups, exponents), exponents).astype(np.float64)
    errors: npt.NDArray[np.float64] = (weights * (decoded - groups) ** 2).sum(axis=1)
    return errors


def _decode(codes: Bytes, exponents: Exponents) -> Floats:
    steps = np.array(VALUES, np.float32)[codes]
    with np.errstate(over="ignore"):
        decoded: Floats = np.ldexp(steps, (exponents - _BIAS)[:, None].astype(np.int32))
    return decoded


def _dequantize(blocks: Bytes) -> Floats:
    return _decode(unpack_nibbles(blocks[:, 1:]), blocks[:, 0].astype(np.int64))


MXFP4 = Codec(_DTYPE, _quantize, _dequantize, refiner=_refine)
