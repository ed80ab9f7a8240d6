"""The error of stored values relative to the source, for a whole tensor and for its worst block.

Blocks are those of the storage type; values of scalar types are measured in runs of `SCALAR_RUN`.
The error of a block is relative to the values of that block, so that a block which is lost
completely is noticed however small its values are. This module reads no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import numpy.typing as npt
from rdrr_format.layouts import Layout

from rdrr_converter.checkpoint.source import F32Array
from rdrr_converter.encode.chunks import Chunk
from rdrr_converter.plan import PlannedTensor

F64Array = npt.NDArray[np.float64]

SLICE = 1 << 19
"""Number of values that are compared at once in float64; a multiple of every block size."""

SCALAR_RUN = 256
"""Number of values that count as a block in scalar types."""

_LEAST_POWER = 1e-60
"""Minimum for the sum of squares of a block, so that the error of a block of zeros is finite."""


@dataclass(frozen=True)
class WorstBlock:
    """The block with the largest relative error.

    Attributes:
        row: Index of the stored row; 0 in the layout `flat`, which has only one.
        block: Index of the block within the row.
        relative_rmse: sqrt(sum (stored - source)^2 / sum source^2) over the block.
    """

    row: int
    block: int
    relative_rmse: float


@dataclass(frozen=True)
class ErrorStats:
    """The error of a stored tensor.

    Attributes:
        relative_rmse: sqrt(sum (stored - source)^2 / sum source^2), in float64; 0 if both are all
            zero, infinite if only the source is.
        worst: The block with the largest relative error; None if every value is exact.
    """

    relative_rmse: float
    worst: WorstBlock | None


class ErrorMeter:
    """An accumulator of the error of one tensor, chunk by chunk in storage order.

    Args:
        tensor: The tensor to measure.
    """

    def __init__(self, tensor: PlannedTensor) -> None:
        self._is_flat = tensor.layout is Layout.FLAT
        self._block = tensor.dtype.block_elements if tensor.dtype.is_block else SCALAR_RUN
        self._difference = self._power = 0.0
        self._worst: tuple[float, int, int] = (0.0, 0, 0)

    def add(self, chunk: Chunk, source: F32Array, stored: F32Array) -> None:
        """Add the error of a chunk.

        Args:
            chunk: The chunk.
            source: Its values in the source, float32 [stored rows, row elements].
            stored: The stored values, of the same shape.
        """
        row, column = (0, chunk.first) if self._is_flat else (chunk.first, 0)
        if not source.size:
            return
        width = source.shape[1]
        rows = max(1, SLICE // max(1, width))
        for first in range(0, len(source), rows):
            for start in range(0, width, SLICE):
                part = slice(first, first + rows), slice(start, start + SLICE)
                self._compare(source[part], stored[part], row + first, column + start)

    def merge(self, other: ErrorMeter) -> None:
        """Add the error of the chunks that follow, which another meter measured."""
        self._difference += other._difference
        self._power += other._power
        if other._worst[0] > self._worst[0]:
            self._worst = other._worst

    def _compare(self, source: F32Array, stored: F32Array, row: int, column: int) -> None:
        values = source.astype(np.float64)
        power = self._by_block(values)
        np.subtract(stored, values, out=values)
        difference = self._by_block(values)
        self._power += float(power.sum())
        self._difference += float(difference.sum())
        ratio = difference / np.maximum(power, _LEAST_POWER)
        at = int(np.argmax(ratio))
        if ratio.flat[at] > self._worst[0]:
            line, block = divmod(at, ratio.shape[1])
            self._worst = float(ratio.flat[at]), row + line, column // self._block + block

    def _by_block(self, values: F64Array) -> F64Array:
        """Return the sums of squares over the blocks of each row, float64 [rows, blocks]."""
        rows, width = values.shape
        whole = width // self._block * self._block
        blocks = values[:, :whole].reshape(rows, -1, self._block)
        sums: F64Array = np.einsum("rbk,rbk->rb", blocks, blocks)
        if whole == width:
            return sums
        tail = values[:, whole:]
        return np.concatenate([sums, np.einsum("rk,rk->r", tail, tail)[:, None]], axis=1)

    def result(self) -> ErrorStats:
        """Return the error of all chunks that were added."""
        if self._power == 0.0:
            return ErrorStats(0.0 if self._difference == 0.0 else inf, self._worst_block())
        return ErrorStats(sqrt(self._difference / self._power), self._worst_block())

    def _worst_block(self) -> WorstBlock | None:
        ratio, row, block = self._worst
        return WorstBlock(row, block, sqrt(ratio)) if ratio > 0.0 else None
