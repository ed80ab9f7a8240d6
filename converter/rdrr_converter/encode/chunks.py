"""Reading source tensors as stored rows, in chunks: concatenated along N, transposed or flattened.

A chunk is a range of stored rows (of elements, in the layout `flat`) that is read, encoded and
written by itself, so that memory is bounded by a few chunks. Chunks follow from the plan and not
from the number of workers; therefore the bytes of the package do not depend on it either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.layouts import Layout

from rdrr_converter.checkpoint.source import F32Array, SourceTensor
from rdrr_converter.plan import PlannedTensor

CHUNK_WEIGHTS = 1 << 20
MIN_COLUMNS = 32
"""Minimum number of columns to read at once; fewer would use only a part of each cache line."""


@dataclass(frozen=True)
class Chunk:
    """The stored rows `first` to `first + count` of a tensor; elements in the layout `flat`."""

    first: int
    count: int


def chunks(tensor: PlannedTensor) -> Iterator[Chunk]:
    """Yield the chunks of a tensor in storage order."""
    stored = tensor.geometry
    if tensor.layout is Layout.FLAT:
        # A multiple of every block size, so that only the last chunk is padded.
        total, step = stored.row_elements, CHUNK_WEIGHTS
    else:
        total, step = stored.rows, max(1, CHUNK_WEIGHTS // max(1, stored.row_elements))
        if tensor.layout is Layout.COLUMN:
            step = max(MIN_COLUMNS, step)
    for first in range(0, total, step):
        yield Chunk(first, min(step, total - first))


def chunk_weights(tensor: PlannedTensor, chunk: Chunk) -> int:
    """Return the number of weights in a chunk without padding."""
    if tensor.layout is Layout.FLAT:
        return chunk.count
    return chunk.count * tensor.geometry.row_elements


def byte_range(tensor: PlannedTensor, chunk: Chunk) -> tuple[int, int]:
    """Return the offset of a chunk within its tensor and its size, in bytes."""
    if tensor.layout is Layout.FLAT:
        block = tensor.dtype
        first = chunk.first // block.block_elements * block.block_bytes
        return first, -(-chunk.count // block.block_elements) * block.block_bytes
    stored = tensor.geometry
    return chunk.first * stored.row_bytes, chunk.count * stored.row_bytes


def read_chunk(tensor: PlannedTensor, chunk: Chunk) -> F32Array:
    """Read a chunk in storage order, float32 [stored rows, row elements]."""
    return _in_storage_order(tensor, chunk, read_rows, SourceTensor.read_transposed)


def stored_chunk(tensor: PlannedTensor, chunk: Chunk) -> npt.NDArray[Any]:
    """Read a chunk without decoding; its sources must store scalars of one type."""
    return _in_storage_order(tensor, chunk, stored_rows, SourceTensor.stored_transposed)


def _in_storage_order(
    tensor: PlannedTensor,
    chunk: Chunk,
    rows_of: Callable[[Sequence[SourceTensor], int, int], npt.NDArray[Any]],
    read_transposed: Callable[[SourceTensor, slice], npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """Arrange what `rows_of` or `read_transposed` reads in the layout of the tensor."""
    end = chunk.first + chunk.count
    if tensor.layout is Layout.COLUMN:
        parts = [read_transposed(part, slice(chunk.first, end)) for part in tensor.sources]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    if tensor.layout is Layout.FLAT:
        width = tensor.sources[0].columns
        first_row = chunk.first // width
        rows = rows_of(tensor.sources, first_row, -(-end // width))
        start = chunk.first - first_row * width
        return rows.reshape(1, -1)[:, start : start + chunk.count]
    return rows_of(tensor.sources, chunk.first, end)


def read_rows(sources: Sequence[SourceTensor], first: int, end: int) -> F32Array:
    """Read rows of the vertically concatenated `sources`, float32 [end - first, columns]."""
    return _stacked([source.read(rows=rows) for source, rows in _pieces(sources, first, end)])


def stored_rows(sources: Sequence[SourceTensor], first: int, end: int) -> npt.NDArray[Any]:
    """Read the same rows without decoding; the sources must have one storage type."""
    return _stacked([source.stored(rows=rows) for source, rows in _pieces(sources, first, end)])


def _pieces(
    sources: Sequence[SourceTensor], first: int, end: int
) -> Iterator[tuple[SourceTensor, slice]]:
    """Yield the rows that each source contributes to rows `first` to `end` of the concatenation."""
    offset = 0
    for source in sources:
        begin, stop = max(first - offset, 0), min(end - offset, source.rows)
        if begin < stop:
            yield source, slice(begin, stop)
        offset += source.rows


def _stacked(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
