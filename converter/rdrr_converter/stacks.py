"""Splitting tensors that a checkpoint stores as one stack, without copying them.

Phi-3 stores queries, keys and values as one matrix, and newer checkpoints of mixture-of-experts
models store all experts of a layer in one tensor. Reading a part reads the corresponding rows of
the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy.typing as npt

from rdrr_converter.sources import SourceTensor
from rdrr_converter.sources.base import Decode, F32Array


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
