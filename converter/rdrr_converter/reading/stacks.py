"""Splitting tensors that a checkpoint stores as one stack, without copying them.

Phi-3 stores queries, keys and values as one matrix, and newer checkpoints of mixture-of-experts
models store all experts of a layer in one tensor. GPT-NeoX stores the rows of each head together,
and GPT-2 stores matrices transposed. Reading a part reads the corresponding rows of the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_converter.checkpoint.source import Decode, F32Array, SourceTensor


def unstack(whole: SourceTensor, shapes: Sequence[tuple[int, int]]) -> Iterator[SourceTensor]:
    """Yield the matrices of a stack.

    Args:
        whole: The stacked tensor; its matrix view has the rows of all parts.
        shapes: Shape [rows, columns] of each part, from the top down; all have the columns of
            the stack.
    """
    first = 0
    for rows, columns in shapes:
        end = first + rows
        yield replace(
            whole,
            name=f"{whole.name}[{first}:{end}]",
            shape=(rows, columns),
            native=partial(_rows, whole.native, first, end),
            decode=whole.decode and partial(_decoded, whole.decode, first, rows),
        )
        first = end


def _rows(native: Callable[[], npt.NDArray[Any]], first: int, end: int) -> npt.NDArray[Any]:
    return native()[first:end]


def _decoded(decode: Decode, first: int, count: int, rows: slice, columns: slice) -> F32Array:
    begin, end, step = rows.indices(count)
    return decode(slice(first + begin, first + end, step), columns)


def transposed(whole: SourceTensor) -> SourceTensor:
    """Return a matrix transposed; a tensor of another rank is returned unchanged."""
    if len(whole.shape) != 2:
        return whole
    return replace(
        whole,
        shape=(whole.shape[1], whole.shape[0]),
        native=partial(_transposed, whole.native),
        decode=whole.decode and partial(_decoded_transposed, whole.decode),
    )


def _transposed(native: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return native().T


def _decoded_transposed(decode: Decode, rows: slice, columns: slice) -> F32Array:
    return decode(columns, rows).T


def as_matrix(whole: SourceTensor, rows: int | None = None) -> SourceTensor:
    """Return a tensor of more than two dimensions as a matrix, whose rows are its first dimension.

    Args:
        whole: The tensor.
        rows: Another number of rows.
    """
    if len(whole.shape) < 3:
        return whole
    rows = rows or whole.shape[0]
    columns = prod(whole.shape) // rows
    return replace(
        whole,
        shape=(rows, columns),
        native=partial(_reshaped, whole.native, columns),
        decode=whole.decode and partial(_decoded_reshaped, whole.decode, columns),
    )


def _reshaped(native: Callable[[], npt.NDArray[Any]], columns: int) -> npt.NDArray[Any]:
    return native().reshape(-1, columns)


def _decoded_reshaped(decode: Decode, width: int, rows: slice, columns: slice) -> F32Array:
    return decode(slice(None), slice(None)).reshape(-1, width)[rows, columns]


def join_rows(name: str, parts: Sequence[SourceTensor]) -> SourceTensor:
    """Return the matrix whose rows are some vectors of the same size and type."""
    shape = (len(parts), parts[0].columns)
    return replace(parts[0], name=name, shape=shape, decode=partial(_joined, tuple(parts)))


def _joined(parts: Sequence[SourceTensor], rows: slice, columns: slice) -> F32Array:
    blocks = [part.read(columns=columns) for part in parts[rows]]
    return np.concatenate(blocks) if blocks else parts[0].read(slice(0, 0), columns)


def with_head_gates(queries: SourceTensor, gates: SourceTensor) -> SourceTensor:
    """Return the matrix with the rows of each head, and then its gate as many times.

    Args:
        queries: A matrix whose rows are those of the heads.
        gates: A matrix with one row for each head.
    """
    return replace(
        queries,
        name=f"{queries.name} with {gates.name}",
        shape=(2 * queries.rows, queries.columns),
        decode=partial(_with_gates, queries, gates),
    )


def _with_gates(
    queries: SourceTensor, gates: SourceTensor, rows: slice, columns: slice
) -> F32Array:
    size = queries.rows // gates.rows
    begin, end, _ = rows.indices(2 * queries.rows)
    first, last = begin // (2 * size), -(-end // (2 * size))
    heads = queries.read(slice(first * size, last * size), columns)
    repeated = np.repeat(gates.read(slice(first, last), columns), size, axis=0)
    shape = (last - first, size, heads.shape[1])
    both = np.concatenate([heads.reshape(shape), repeated.reshape(shape)], axis=1)
    start = first * 2 * size
    return both.reshape(-1, heads.shape[1])[begin - start : end - start]


def unstack_groups(
    whole: SourceTensor, shapes: Sequence[tuple[int, ...]], groups: int
) -> Iterator[SourceTensor]:
    """Yield the parts of a stack of vectors, or of a stack whose parts alternate by group.

    Args:
        whole: The stacked tensor, a vector or a matrix.
        shapes: Shape of each part; its rows are a multiple of `groups`.
        groups: Number of groups; each holds the rows of all parts for one key-value head.
    """
    period = whole.shape[0] // groups
    first = 0
    for shape in shapes:
        count = shape[0] // groups
        part = _GroupedRows(whole, period, first, count)
        yield replace(
            whole, name=f"{whole.name}[{first}:{first + count}]", shape=shape, decode=part
        )
        first += count


@dataclass(frozen=True)
class _GroupedRows:
    """A reader of one part of a stack, which has `count` elements or rows of every `period`."""

    whole: SourceTensor
    period: int
    first: int
    count: int

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        if len(self.whole.shape) == 1:
            values = self.whole.read().reshape(-1, self.period)
            return values[:, self.first : self.first + self.count].reshape(1, -1)[rows, columns]
        total = self.whole.rows // self.period * self.count
        begin, end, _ = rows.indices(total)
        runs = []
        while begin < end:
            group, offset = divmod(begin, self.count)
            length = min(self.count - offset, end - begin)
            start = group * self.period + self.first + offset
            runs.append(self.whole.read(slice(start, start + length), columns))
            begin += length
        if not runs:
            return self.whole.read(slice(0, 0), columns)
        return runs[0] if len(runs) == 1 else np.concatenate(runs)
