"""How far stored values are from the source's: of a whole tensor, and of its worst block.

A block is what the storage type makes of a stored row; scalar types are looked at in runs of
`SCALAR_RUN` values. The error of a block is relative to the block's own values, so that a part
which is lost altogether shows however small its values are. This module reads no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import numpy.typing as npt
from rdrr_format.layouts import Layout

from rdrr_converter.plan import PlannedTensor
from rdrr_converter.sources.base import F32Array
from rdrr_converter.transforms import Chunk

F64Array = npt.NDArray[np.float64]

SLICE = 1 << 19
"""Values compared at once, in float64; a multiple of every block."""

SCALAR_RUN = 256
"""Values that count as a block in types that have none."""

_LEAST_POWER = 1e-60
"""Stands in for the power of a block of zeros, so that its error is large but a number."""


@dataclass(frozen=True)
class WorstBlock:
    """The block that lost most.

    Attributes:
        row: Stored row; 0 in the layout `flat`, which has only one.
        block: Block within the row.
        relative_rmse: sqrt(sum (stored - source)^2 / sum source^2) over the block.
    """

    row: int
    block: int
    relative_rmse: float


@dataclass(frozen=True)
class ErrorStats:
    """What a tensor lost.

    Attributes:
        relative_rmse: sqrt(sum (stored - source)^2 / sum source^2), in float64; 0 where both are
            all zero, infinite where only the source is.
        worst: Its worst block; None where nothing was lost.
    """

    relative_rmse: float
    worst: WorstBlock | None


class ErrorMeter:
    """Adds up the chunks of one tensor, given in storage order.

    Args:
        tensor: The tensor.
    """

    def __init__(self, tensor: PlannedTensor) -> None:
        self._is_flat = tensor.layout is Layout.FLAT
        self._block = tensor.dtype.block_elements if tensor.dtype.is_block else SCALAR_RUN
        self._difference = self._power = 0.0
        self._worst: tuple[float, int, int] = (0.0, 0, 0)

    def add(self, chunk: Chunk, wanted: F32Array, found: F32Array) -> None:
        """Compare a chunk: float32 [stored rows, row elements], source and stored."""
        row, column = (0, chunk.first) if self._is_flat else (chunk.first, 0)
        if not wanted.size:
            return
        width = wanted.shape[1]
        rows = max(1, SLICE // max(1, width))
        for first in range(0, len(wanted), rows):
            for start in range(0, width, SLICE):
                part = slice(first, first + rows), slice(start, start + SLICE)
                self._compare(wanted[part], found[part], row + first, column + start)

    def merge(self, other: ErrorMeter) -> None:
        """Add what another meter found in chunks that follow."""
        self._difference += other._difference
        self._power += other._power
        if other._worst[0] > self._worst[0]:
            self._worst = other._worst

    def _compare(self, wanted: F32Array, found: F32Array, row: int, column: int) -> None:
        source = wanted.astype(np.float64)
        power = self._by_block(source)
        np.subtract(found, source, out=source)
        difference = self._by_block(source)
        self._power += float(power.sum())
        self._difference += float(difference.sum())
        ratio = difference / np.maximum(power, _LEAST_POWER)
        at = int(np.argmax(ratio))
        if ratio.flat[at] > self._worst[0]:
            line, block = divmod(at, ratio.shape[1])
            self._worst = float(ratio.flat[at]), row + line, column // self._block + block

    def _by_block(self, values: F64Array) -> F64Array:
        """Sums of squares over the blocks of each row, float64 [rows, blocks]."""
        rows, width = values.shape
        whole = width // self._block * self._block
        blocks = values[:, :whole].reshape(rows, -1, self._block)
        sums: F64Array = np.einsum("rbk,rbk->rb", blocks, blocks)
        if whole == width:
            return sums
        tail = values[:, whole:]
        return np.concatenate([sums, np.einsum("rk,rk->r", tail, tail)[:, None]], axis=1)

    def result(self) -> ErrorStats:
        """The tensor's error."""
        if self._power == 0.0:
            return ErrorStats(0.0 if self._difference == 0.0 else inf, self._worst_block())
        return ErrorStats(sqrt(self._difference / self._power), self._worst_block())

    def _worst_block(self) -> WorstBlock | None:
        ratio, row, block = self._worst
        return WorstBlock(row, block, sqrt(ratio)) if ratio > 0.0 else None
