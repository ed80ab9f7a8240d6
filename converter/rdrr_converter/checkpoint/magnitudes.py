"""The largest magnitudes of a tensor: of all its values, of each row and of each column."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import SCAN_ELEMENTS, F32Array, SourceTensor, read_ahead

CACHED_ELEMENTS = 1 << 17
"""Weights that are compared at a time: they stay in the processor's cache while their rows and then
their columns are compared."""

_ALIKE = 8.0
"""Lines whose largest values differ by less than this factor are not remembered: the type that
holds the largest of them holds all, and no factor beside them makes up for a small line."""


@dataclass(frozen=True)
class Magnitudes:
    """Largest absolute values of a tensor.

    Attributes:
        largest: Of all its values.
        rows: Of each row, float32; None where all rows but those of zeros are of about one size.
        columns: Of each column, likewise.
    """

    largest: float
    rows: F32Array | None = None
    columns: F32Array | None = None


def measure_finite(tensor: SourceTensor) -> Magnitudes:
    """Return the largest absolute values of a tensor.

    Raises:
        SourceError: A value is an infinity or a NaN, or cannot be read.
    """
    measured = measure(tensor)
    if not isfinite(measured.largest):
        raise SourceError(
            "the weights are not finite",
            where=tensor.where + f" ({tensor.note})" * bool(tensor.note),
            expected="finite numbers",
            found=measured.largest,
        )
    return measured


def measure(tensor: SourceTensor) -> Magnitudes:
    """Return the largest absolute values of a tensor: infinity or NaN if any value is."""
    if tensor.is_block or tensor.offset or tensor.decode is not None:
        with np.errstate(all="ignore"):  # values that are not finite are part of the result
            rows, columns = _of_decoded(tensor)
    else:
        rows, columns = _of_scalars(tensor)
    largest = float(columns.max(initial=0.0))
    return Magnitudes(largest, _unless_alike(rows), _unless_alike(columns))


def _unless_alike(lines: F32Array) -> F32Array | None:
    positive = lines[lines > 0.0]
    is_alike = positive.size == 0 or positive.max() < _ALIKE * positive.min()
    return None if is_alike else lines


def _of_decoded(tensor: SourceTensor) -> tuple[F32Array, F32Array]:
    rows = np.zeros(tensor.rows, np.float32)
    columns = np.zeros(tensor.columns, np.float32)
    step = max(1, SCAN_ELEMENTS // max(1, tensor.columns))
    inner = max(1, CACHED_ELEMENTS // max(1, tensor.columns))
    for first in range(0, tensor.rows, step):
        values = tensor.read(slice(first, first + step))
        for start in range(0, len(values), inner):
            part = np.abs(values[start : start + inner])
            begin = first + start
            part.max(axis=1, initial=0.0, out=rows[begin : begin + len(part)])
            np.maximum(columns, part.max(axis=0), out=columns)
    return rows, columns


def _of_scalars(tensor: SourceTensor) -> tuple[F32Array, F32Array]:
    """Compare bit patterns without the sign.

    These patterns have the order of the absolute values, with infinity above every number and NaN
    above infinity.
    """
    tensor.check_scalar()
    stored = tensor.native()
    width = np.dtype(f"u{stored.dtype.itemsize}")
    mask = width.type((1 << (8 * width.itemsize - 1)) - 1)
    rows, columns = np.zeros(tensor.rows, width), np.zeros(tensor.columns, width)
    step = max(1, SCAN_ELEMENTS // max(1, tensor.columns))
    inner = max(1, CACHED_ELEMENTS // max(1, tensor.columns))
    for first in range(0, tensor.rows, step):
        patterns = read_ahead(stored[first : first + step]).view(width)
        for start in range(0, len(patterns), inner):
            part = patterns[start : start + inner] & mask
            begin = first + start
            part.max(axis=1, initial=0, out=rows[begin : begin + len(part)])
            np.maximum(columns, part.max(axis=0), out=columns)
    return tensor.in_order(_as_f32(rows, tensor.dtype)), _as_f32(columns, tensor.dtype)


def _as_f32(patterns: npt.NDArray[Any], dtype: str) -> F32Array:
    if dtype == "BF16":
        return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return patterns.view("f" + str(patterns.dtype.itemsize)).astype(np.float32)
