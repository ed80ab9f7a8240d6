"""What Q4_K and Q5_K share: eight groups of 32, each with a 6-bit scale and a 6-bit minimum.

    w = d * scale_j * code - dmin * minimum_j

The search finds a float32 scale and minimum for each group. Both are quantized to six bits relative
to the largest of the block, and the codes are computed again with the quantized values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rdrr_format.codecs._importance import ordered_sum, spread_weights
from rdrr_format.codecs._refine import Form, column_weights, refine, round_codes
from rdrr_format.codecs._scales import pack_scales, unpack_scales
from rdrr_format.codecs.base import Bytes, Codec, Floats, f16_bytes, f16_floats, packed_codec
from rdrr_format.dtypes import DType

_LARGEST = 63  # largest 6-bit value


@dataclass(frozen=True)
class Search:
    """Candidates for the inverse scale: (rmin + rdelta * step + nmax) / range, step 0 to nstep."""

    rmin: float
    rdelta: float
    nstep: int


# ggml searches more finely if there are importance weights.
WEIGHTED_SEARCH = Search(-0.9, 0.05, 36)


def affine_codec(
    dtype: DType,
    levels: int,
    search: Search,
    pack: Callable[[Bytes], Bytes],
    unpack: Callable[[Bytes], Bytes],
) -> Codec:
    """Return the codec of a type.

    Args:
        dtype: Name and sizes of the type.
        levels: Number of codes, 16 or 32.
        search: Candidates for the case without importance.
        pack: Packs codes [blocks, 8, 32] to the bytes of a block from 16 on.
        unpack: The inverse of `pack`.
    """

    def dequantize(blocks: Bytes) -> Floats:
        scales, mins = unpack_scales(blocks[:, 4:16])
        steps = f16_floats(blocks[:, 0:2])[:, None] * scales
        offsets = f16_floats(blocks[:, 2:4])[:, None] * mins
        weights = unpack(blocks[:, 16:]).astype(np.float32)
        weights *= steps[:, :, None]
        weights -= offsets[:, :, None]
        return weights.reshape(len(blocks), 256)

    return packed_codec(
        dtype,
        16,
        lambda rows, importance: quantize_affine(rows, importance, levels - 1, search, dtype),
        lambda rows, columns, head: refine_affine(rows, columns, head, levels - 1, dtype),
        lambda codes: pack(codes.reshape(-1, 8, 32)),
        dequantize,
        levels=levels,
        scales=(0, 2),
    )


def quantize_affine(
    rows: Floats, importance: Floats | None, nmax: int, search: Search, dtype: DType
) -> tuple[Bytes, Bytes]:
    """Quantize rows whose length is a multiple of 256.

    Args:
        rows: float32 [n, K], K a multiple of 256.
        importance: float32 [K] or None.
        nmax: Largest code.
        search: Candidates for the case without importance.
        dtype: Type to name in errors.

    Returns:
        Bytes 0 to 15 of each block [blocks, 16], and the codes [blocks, 8, 32].
    """
    from rdrr_format.codecs._affine_search import affine_codes

    groups = rows.reshape(-1, 32)
    count = len(groups)
    weights = None
    if importance is not None:
        search, weights = WEIGHTED_SEARCH, spread_weights(rows, importance, 256).reshape(-1, 32)
    scales, mins, chosen = search_groups(groups, weights, nmax, search)
    if weights is None:
        (d, scale_codes), (dmin, min_codes) = _six_bit_codes(scales), _six_bit_codes(mins)
    else:
        sums = ordered_sum(weights).reshape(-1, 8)
        d, scale_codes = _fit(scales.reshape(-1, 8), sums)
        dmin, min_codes = _fit(mins.reshape(-1, 8), sums)
    head = np.concatenate(
        [f16_bytes(d, dtype), f16_bytes(dmin, dtype), pack_scales(scale_codes, min_codes)], axis=1
    )
    codes = np.empty((count, 32), np.uint8)
    steps = f16_floats(head[:, 0:2])[:, None] * scale_codes
    offsets = f16_floats(head[:, 2:4])[:, None] * min_codes
    affine_codes(groups, steps.reshape(-1), offsets.reshape(-1), chosen, nmax, codes)
    return head, codes.reshape(-1, 8, 32)


def refine_affine(
    rows: Floats, columns: Floats, head: Bytes, nmax: int, dtype: DType
) -> tuple[Bytes, Bytes]:
    """Lower the error of quantized blocks.

    Args:
        rows: float32 [n, K], K a multiple of 256.
        columns: float32 [K], the weight of each column's error.
        head: Bytes 0 to 15 of the quantized blocks [blocks, 16].
        nmax: Largest code.
        dtype: Type to name in errors.

    Returns:
        Bytes 0 to 15 of each block [blocks, 16], and the codes [blocks, 8, 32].
    """
    form = Form(8, (0, nmax), (0, _LARGEST), (0, _LARGEST), reach=((4, 4), (1, 1)))
    groups = rows.reshape(-1, 32)
    pairs = np.stack(unpack_scales(head[:, 4:16]), axis=2).astype(np.float32)
    d, dmin = f16_floats(head[:, 0:2]), f16_floats(head[:, 2:4])
    fit = refine(groups, column_weights(rows, columns, 32), form, d, dmin, pairs)
    scales, mins = fit.pairs[:, :, 0].astype(np.uint8), fit.pairs[:, :, 1].astype(np.uint8)
    parts = [f16_bytes(fit.d, dtype), f16_bytes(fit.dmin, dtype), pack_scales(scales, mins)]
    return np.concatenate(parts, axis=1), round_codes(groups, form, fit).reshape(-1, 8, 32)


def search_groups(
    groups: Floats, weights: Floats | None, nmax: int, search: Search
) -> tuple[Floats, Floats, Floats]:
    """Run `search_affine` on groups [n, 32].

    Returns:
        Scales [n], minimums [n], and the parameters of the codes [n, 2] (`chosen`).
    """
    from rdrr_format.codecs._affine_search import search_affine

    count = len(groups)
    scales, mins = np.empty(count, np.float32), np.empty(count, np.float32)
    chosen = np.empty((count, 2), np.float32)
    search_affine(
        groups,
        np.empty((0, 0), np.float32) if weights is None else weights,
        weights is not None,
        nmax,
        np.float32(search.rmin),
        np.float32(search.rdelta),
        search.nstep,
        scales,
        mins,
        chosen,
    )
    return scales, mins, chosen


def _six_bit_codes(values: Floats) -> tuple[Floats, Bytes]:
    """Quantize group scales or minimums [blocks * 8] to 6 bits, relative to the block's largest.

    Returns:
        Block scales [blocks], and codes [blocks, 8].
    """
    groups = values.reshape(-1, 8)
    largest = np.maximum(groups.max(axis=1), np.float32(0))
    # The inverse overflows for denormals; those codes are later multiplied by a scale of zero.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, np.float32(_LARGEST) / largest, np.float32(0))
        codes = np.rint(inverse[:, None] * groups).astype(np.int32)
    # ggml stores the code in a byte, which can wrap around, before it clips.
    clipped = np.minimum(codes.astype(np.uint8), np.uint8(_LARGEST))
    return largest / np.float32(_LARGEST), clipped


def _fit(values: Floats, weights: Floats) -> tuple[Floats, Bytes]:
    from rdrr_format.codecs._fit_scales import fit_scales

    scales = np.empty(len(values), np.float32)
    codes = np.empty(values.shape, np.uint8)
    fit_scales(values, weights, _LARGEST, codes, scales)
    return scales, codes
