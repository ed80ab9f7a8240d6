"""What Q4_0, Q5_0 and Q5_1 share: groups of 32, packed as 16 bytes of nibbles and 4 of fifth bits.

Byte j holds code j in its low and code 16 + j in its high half; bit j of the little-endian 32-bit
word of fifth bits belongs to code j.
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._base import Bytes, Floats, f16_bytes
from rdrr_format.codecs._importance import spread_weights
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
