"""Tensors that a checkpoint holds on top of each other in one, as tensors of their own.

Phi-3's queries, keys and values are one matrix, and newer checkpoints of mixtures keep all experts
of a layer in one tensor. What is read of a part is read from its place in the whole.
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
    """The matrices of a stack.

    Args:
        whole: Tensor whose matrix view has the rows of all parts.
        shapes: Shape of each part, from the top down; all have the columns of the whole.
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
