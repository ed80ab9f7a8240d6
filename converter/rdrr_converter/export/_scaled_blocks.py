"""Multiplying blocks by a factor: their scales are multiplied, and their codes stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rdrr_format.block_fields import BLOCK_FIELDS
from rdrr_format.dtypes import DType
from rdrr_manifests.logical import LogicalTensor, RowReader
from rdrr_manifests.package import Package

Bytes = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]

_LARGEST_LOSS = 2.0**-9
"""Largest relative error (RMS) of the scales of a tensor, a part of that of the blocks. It
is 2^-13 for normal numbers of f16, and larger where factors make scales subnormal."""


def scaled_blocks(rows: Bytes, dtype: DType, factors: F64) -> Bytes:
    """Return rows of blocks with their scales multiplied by the factor of each row.

    Args:
        rows: Stored rows, uint8 [rows, row bytes].
        dtype: Block type, for which `can_scale` holds.
        factors: [rows].
    """
    blocks = rows.reshape(len(rows), -1, dtype.block_bytes).copy()
    where = _scale_bytes(dtype)
    scales = np.ascontiguousarray(blocks[..., where]).view("<f2").astype(np.float64)
    scaled = (scales * factors[:, None, None]).astype("<f2")
    blocks[..., where] = np.ascontiguousarray(scaled).view(np.uint8)
    return blocks.reshape(rows.shape)


def can_scale(package: Package, parts: Sequence[LogicalTensor], factors: F64) -> bool:
    """Return whether f16 holds the scales of all blocks, times the factors of the rows.

    Args:
        package: The package.
        parts: Tensors of one block type.
        factors: The factor of each row, over all parts.
    """
    where, at = _scale_bytes(parts[0].dtype), 0
    if not where:
        return False
    error = power = 0.0
    for part in parts:
        reader = RowReader(package, part)
        for first, count in reader.chunks():
            blocks = reader.stored(first, count).reshape(count, -1, part.dtype.block_bytes)
            scales = np.ascontiguousarray(blocks[..., where]).view("<f2").astype(np.float64)
            scales *= factors[at + first : at + first + count, None, None]
            with np.errstate(over="ignore"):
                stored = scales.astype(np.float16).astype(np.float64)
            error += float(np.square(stored - scales).sum())
            power += float(np.square(scales).sum())
        at += part.rows
    return error <= _LARGEST_LOSS**2 * power


def _scale_bytes(dtype: DType) -> list[int]:
    """Return the bytes of a block that are scales in f16; none if they are powers of two."""
    fields = BLOCK_FIELDS.get(dtype.name)
    return [byte for first in fields.f16_offsets for byte in (first, first + 1)] if fields else []
