"""What Q4_1 and Q5_1 share: groups of 32 weights with an f16 scale d and an f16 minimum m.

w = d * code + m
"""

from __future__ import annotations

import numpy as np

from rdrr_format.codecs._groups32 import inverse_or_zero, pack_codes, truncated_codes, unpack_codes
from rdrr_format.codecs._importance import spread_weights
from rdrr_format.codecs._refine import Form, column_weights, refine, round_codes
from rdrr_format.codecs.affine import WEIGHTED_SEARCH, search_groups
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_bytes, f16_floats, packed_codec
from rdrr_format.dtypes import DType


def codec_with_minimum(dtype: DType, levels: int) -> Codec:
    """Return the codec of a type with a scale and a minimum for a group.

    Args:
        dtype: Name and sizes of the type.
        levels: Number of codes, 16 or 32.
    """

    def dequantize(blocks: Bytes) -> Floats:
        weights = unpack_codes(blocks[:, 4:], levels).astype(np.float32)
        weights *= f16_floats(blocks[:, :2])[:, None]
        weights += f16_floats(blocks[:, 2:4])[:, None]
        return weights

    return packed_codec(
        dtype,
        4,
        lambda rows, importance: quantize_with_minimum(rows, importance, levels - 1, dtype),
        lambda rows, columns, factors: refine_with_minimum(
            rows, columns, factors, levels - 1, dtype
        ),
        lambda codes: pack_codes(codes, levels),
        dequantize,
        levels=levels,
        scales=(0, 2),
    )


def quantize_with_minimum(
    rows: Floats, importance: Floats | None, largest: int, dtype: DType
) -> tuple[Bytes, Bytes]:
    """Quantize to codes from 0 to `largest`; with importance, scale and minimum are searched.

    Args:
        rows: float32 [n, K], K a multiple of 32.
        importance: float32 [K] or None.
        largest: Highest code.
        dtype: Type to name in errors.

    Returns:
        f16 scales and minimums as bytes [groups, 4], and codes [groups, 32].
    """
    if importance is None:
        return _covering(rows, largest, dtype)
    return _searched(rows, importance, largest, dtype)


def refine_with_minimum(
    rows: Floats, columns: Floats, factors: Bytes, largest: int, dtype: DType
) -> tuple[Bytes, Bytes]:
    """Lower the error of groups.

    Args:
        rows: float32 [n, K], K a multiple of 32.
        columns: float32 [K], the weight of each column's error.
        factors: Initial f16 scales and minimums, as bytes [groups, 4].
        largest: Highest code.
        dtype: Type to name in errors.

    Returns:
        The same as `quantize_with_minimum`.
    """
    form = Form(1, (0, largest), (1, 1), (1, 1), reach=((0, 0),) * 4, signed_floor=True)
    groups, weights = rows.reshape(-1, 32), column_weights(rows, columns, 32)
    scale, low = f16_floats(factors[:, 0:2]), f16_floats(factors[:, 2:4])
    fit = refine(groups, weights, form, scale, -low, np.ones((len(groups), 1, 2), np.float32))
    return _factors(fit.d, -fit.dmin, dtype), round_codes(groups, form, fit)


def _factors(scale: Floats, low: Floats, dtype: DType) -> Bytes:
    return np.concatenate([f16_bytes(scale, dtype), f16_bytes(low, dtype)], axis=1)


def _covering(rows: Floats, largest: int, dtype: DType) -> tuple[Bytes, Bytes]:
    groups = rows.reshape(-1, 32)
    # Of equal elements the first counts, which decides the sign of a zero.
    low = np.take_along_axis(groups, groups.argmin(axis=1)[:, None], axis=1)[:, 0]
    top = np.take_along_axis(groups, groups.argmax(axis=1)[:, None], axis=1)[:, 0]
    scale = (top - low) / np.float32(largest)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = (groups - low[:, None]) * inverse_or_zero(scale)[:, None] + np.float32(0.5)
    return _factors(scale, low, dtype), truncated_codes(scaled, largest)


def _searched(rows: Floats, importance: Floats, largest: int, dtype: DType) -> tuple[Bytes, Bytes]:
    from rdrr_format.codecs._affine_search import affine_codes

    groups = rows.reshape(-1, 32)
    weights = spread_weights(rows, importance, rows.shape[1], factor=1.0).reshape(-1, 32)
    scales, mins, chosen = search_groups(groups, weights, largest, WEIGHTED_SEARCH)
    codes = np.empty(groups.shape, np.uint8)
    # Steps of 0 keep the codes of the search: ggml does not round these types again.
    nothing = np.zeros_like(scales)
    affine_codes(groups, nothing, nothing, chosen, largest, codes)
    return _factors(scales, -mins, dtype), codes
