"""What Q4_0, Q5_0 and Q5_1 share: groups of 32 weights, packed as nibbles and fifth bits.

The nibbles take 16 bytes: byte j holds code j in its low and code 16 + j in its high half. The
fifth bits take 4 bytes: bit j of the little-endian 32-bit word belongs to code j.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rdrr_format.codecs._importance import spread_weights
from rdrr_format.codecs._refine import Form, column_weights, refine, round_codes
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_bytes, f16_floats, packed_codec
from rdrr_format.dtypes import DType


def pack_nibbles(codes: Bytes) -> Bytes:
    """Pack the low four bits of codes [n, 32] to bytes [n, 16]."""
    low: Bytes = codes & np.uint8(15)
    return low[:, :16] | low[:, 16:] << np.uint8(4)


def unpack_nibbles(packed: Bytes) -> Bytes:
    """Unpack bytes [n, 16] to 4-bit codes [n, 32]."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def pack_codes(codes: Bytes, levels: int) -> Bytes:
    """Pack codes [n, 32] to their fifth bits, which 16 levels do not have, and their nibbles."""
    if levels == 16:
        return pack_nibbles(codes)
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.concatenate([fifth, pack_nibbles(codes)], axis=1)


def unpack_codes(packed: Bytes, levels: int) -> Bytes:
    """Unpack what `pack_codes` returns to codes [n, 32]."""
    codes = unpack_nibbles(packed[:, -16:])
    if levels == 16:
        return codes
    return codes | np.unpackbits(packed[:, :4], axis=1, bitorder="little") << np.uint8(4)


def signed_codec(dtype: DType, levels: int, fractions: tuple[float, ...]) -> Codec:
    """Return the codec of a type with one scale for a group: w = d * (code - levels / 2).

    Args:
        dtype: Name and sizes of the type.
        levels: Number of codes, 16 or 32.
        fractions: See `refine_signed`.
    """
    zero = levels // 2

    def dequantize(blocks: Bytes) -> Floats:
        centred = unpack_codes(blocks[:, 2:], levels).astype(np.float32) - np.float32(zero)
        return centred * f16_floats(blocks[:, :2])[:, None]

    return packed_codec(
        dtype,
        2,
        lambda rows, importance: quantize_signed(rows, importance, zero, dtype),
        lambda rows, columns, scales: refine_signed(
            rows, columns, scales, (-zero, zero - 1), dtype, fractions
        ),
        lambda codes: pack_codes(codes, levels),
        dequantize,
        levels=levels,
        scales=(0,),
    )


def quantize_signed(
    rows: Floats, importance: Floats | None, nmax: int, dtype: DType
) -> tuple[Bytes, Bytes]:
    """Quantize to codes around nmax: w = d * (code - nmax).

    Without importance, the scale maps the element of largest magnitude exactly to code 0. With
    importance, the scale is searched.

    Args:
        rows: float32 [n, K], K a multiple of 32.
        importance: float32 [K] or None.
        nmax: Codes run from 0 to 2 * nmax - 1.
        dtype: Type to name in errors.

    Returns:
        f16 scales as bytes [groups, 2], and codes [groups, 32].
    """
    groups = rows.reshape(-1, 32)
    if importance is not None:
        return _searched(rows, importance, nmax, dtype)
    at = np.abs(groups).argmax(axis=1)
    # Adding zero turns -0 into +0, so that a group of zeros gets the scale -0, as in ggml.
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
    """Lower the error of groups that have one scale each: w = d * code.

    Args:
        rows: float32 [n, K], K a multiple of 32.
        columns: float32 [K], the weight of each column's error.
        scales: Initial f16 scales, as bytes [groups, 2].
        codes: Lowest and highest code.
        dtype: Type to name in errors.
        fractions: Further initial scales, as fractions of the scale that covers both extremes.

    Returns:
        f16 scales as bytes [groups, 2], and codes minus the lowest code [groups, 32].
    """
    # The factor is always 1 and does not move, so each round only fits the scale again.
    form = Form(1, codes, (1, 1), (0, 0), reach=((0, 0),) * 3)
    groups, weights = rows.reshape(-1, 32), column_weights(rows, columns, 32)
    pairs = np.zeros((len(groups), 1, 2), np.float32)
    pairs[:, :, 0] = 1
    no_minimum = np.zeros(len(groups), np.float32)
    fit = refine(groups, weights, form, f16_floats(scales), no_minimum, pairs)
    for start in _other_scales(groups, codes, fractions):
        fit.keep_better(refine(groups, weights, form, start, no_minimum, pairs))
    return f16_bytes(fit.d, dtype), round_codes(groups, form, fit)


def _other_scales(
    groups: Floats, codes: tuple[int, int], fractions: tuple[float, ...]
) -> Iterator[Floats]:
    """Yield fractions of the scales, of either sign, whose codes cover the range of a group.

    Fractions below 1 clip the extremes in exchange for finer steps.
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
    # Steps of 0 keep the codes of the search: ggml does not round these types again.
    signed_codes(groups, np.zeros_like(scales), chosen, nmax, codes)
    return f16_bytes(scales, dtype), codes


def inverse_or_zero(scale: Floats) -> Floats:
    """Return 1 / scale, and 0 where the scale is 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse: Floats = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
    return inverse


def truncated_codes(values: Floats, largest: int) -> Bytes:
    """Truncate non-negative values to integers of at most `largest`; 0 if not finite, as in C."""
    finite = np.where(np.isfinite(values), values, np.float32(0))
    return np.minimum(finite, np.float32(largest)).astype(np.uint8)
