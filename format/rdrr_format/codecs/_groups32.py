"""What Q4_0, Q5_0 and Q5_1 share: groups of 32, packed as 16 bytes of nibbles and 4 of fifth bits.

Byte j holds code j in its low and code 16 + j in its high half; bit j of the little-endian 32-bit
word of fifth bits belongs to code j.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rdrr_format.codecs._importance import spread_weights
from rdrr_format.codecs._refine import Form, column_weights, refine, round_codes
from rdrr_format.codecs.base import Bytes, Floats, f16_bytes, f16_floats
from rdrr_format.dtypes import DType


def pack_nibbles(codes: Bytes) -> Bytes:
    """Low four bits of codes [n, 32] as bytes [n, 16]."""
    low: Bytes = codes & np.uint8(15)
    return low[:, :16] | low[:, 16:] << np.uint8(4)


def unpack_nibbles(packed: Bytes) -> Bytes:
    """Bytes [n, 16] as codes [n, 32] of four bits."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def pack_fifth_bits(codes: Bytes) -> Bytes:
    """Fifth bits of codes [n, 32] as bytes [n, 4]."""
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def unpack_fifth_bits(packed: Bytes) -> Bytes:
    """Bytes [n, 4] as the values 0 or 16 [n, 32]."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def quantize_signed(
    rows: Floats, importance: Floats | None, nmax: int, dtype: DType
) -> tuple[Bytes, Bytes]:
    """Codes around the middle: w = d * (code - nmax).

    Without importance the element of largest magnitude gets code 0 exactly; with it the scale is
    searched.

    Args:
        rows: float32 [n, K], K a multiple of 32.
        importance: float32 [K] or None.
        nmax: Codes run from 0 to 2 * nmax - 1.
        dtype: Type named in errors.

    Returns:
        f16 scales as bytes [groups, 2], and codes [groups, 32].
    """
    groups = rows.reshape(-1, 32)
    if importance is not None:
        return _searched(rows, importance, nmax, dtype)
    at = np.abs(groups).argmax(axis=1)
    # Adding zero makes +0 of -0, so that a group of zeros has the scale -0, as in ggml.
    peak = np.take_along_axis(groups, at[:, None], axis=1)[:, 0] + np.float32(0)
    scale = peak / np.float32(-nmax)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = groups * inverse_or_zero(scale)[:, None] + np.float32(nmax + 0.5)
    return f16_bytes(scale, dtype), truncated_codes(scaled, 2 * nmax - 1)


def refine_signed(
    rows: Floats,
    columns: Floats,
    scales: Bytes,
    codes: tuple[int, int],
    dtype: DType,
    fractions: tuple[float, ...] = (),
) -> tuple[Bytes, Bytes]:
    """Lower the error of groups with one scale: w = d * code.

    Args:
        rows: float32 [n, K], K a multiple of 32.
        columns: float32 [K], the weight of each column's error.
        scales: f16 scales to begin with, as bytes [groups, 2].
        codes: Lowest and highest code.
        dtype: Type named in errors.
        fractions: Further scales to begin with, as fractions of those that reach both extremes.

    Returns:
        f16 scales as bytes [groups, 2], and codes counted from the lowest, [groups, 32].
    """
    form = Form(1, codes, (1, 1), (0, 0), reach=((0, 0),) * 3)
    groups, weights = rows.reshape(-1, 32), column_weights(rows, columns, 32)
    pairs = np.zeros((len(groups), 1, 2), np.float32)
    pairs[:, :, 0] = 1
    silent = np.zeros(len(groups), np.float32)
    fit = refine(groups, weights, form, f16_floats(scales), silent, pairs)
    for start in _other_scales(groups, codes, fractions):
        fit.keep_better(refine(groups, weights, form, start, silent, pairs))
    return f16_bytes(fit.d, dtype), round_codes(groups, form, fit)


def _other_scales(
    groups: Floats, codes: tuple[int, int], fractions: tuple[float, ...]
) -> Iterator[Floats]:
    """Shares of the scales of either sign whose codes reach from the lowest value to the highest.

    Shares below 1 cut the extremes off, for finer steps between them.
    """
    low, high = groups.min(axis=1), groups.max(axis=1)
    ends = ((low, high, 1), (high, low, -1))
    for first, second, sign in ends:
        widest = np.maximum(first / codes[0] * sign, second / codes[1] * sign)
        for fraction in fractions:
            scale = (sign * fraction * widest).astype(np.float16).astype(np.float32)
            yield np.where(np.isfinite(scale), scale, np.float32(0))


def _searched(rows: Floats, importance: Floats, nmax: int, dtype: DType) -> tuple[Bytes, Bytes]:
    from rdrr_format.codecs._signed_search import search_signed, signed_codes

    groups = rows.reshape(-1, 32)
    weights = spread_weights(rows, importance, rows.shape[1], factor=1.0).reshape(-1, 32)
    scales, chosen = np.empty(len(groups), np.float32), np.empty(len(groups), np.float32)
    search_signed(groups, weights, True, nmax, scales, chosen)
    codes = np.empty(groups.shape, np.uint8)
    # Steps of 0 keep the codes of the search: these types do not round again.
    signed_codes(groups, np.zeros_like(scales), chosen, nmax, codes)
    return f16_bytes(scales, dtype), codes


def inverse_or_zero(scale: Floats) -> Floats:
    """1 / scale, and 0 for 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse: Floats = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
    return inverse


def truncated_codes(values: Floats, largest: int) -> Bytes:
    """Whole parts of non-negative values, at most `largest`; 0 where not finite, as in C."""
    finite = np.where(np.isfinite(values), values, np.float32(0))
    return np.minimum(finite, np.float32(largest)).astype(np.uint8)
