"""Stacks of experts whose rows do not follow each other: taking them apart, and building them.

gpt-oss stores the experts of a layer transposed, with alternating rows of gate and up. Reading a
part reads the corresponding rows or columns of the stack, without copying the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.architectures.base import Arrangement
from rdrr_converter.checkpoint.source import Decode, F32Array, SourceTensor


@dataclass(frozen=True)
class _Place:
    """Where a part lies in the matrix of the whole.

    Attributes:
        rows: Rows of the whole.
        columns: Columns of the whole.
        transposed: Whether the part is the transpose of these.
    """

    rows: slice
    columns: slice
    transposed: bool = False


def stacked_shape(
    arrangement: Arrangement, shapes: Sequence[tuple[int, int]], experts: int | None
) -> tuple[int, ...]:
    """Return the shape that a stack must have.

    Args:
        arrangement: How the parts are arranged.
        shapes: Shape [rows, columns] of each part of an expert, or of each part.
        experts: Number of experts; None if the parts do not belong to experts.
    """
    leading = () if experts is None else (experts,)
    rows, columns = sum(shape[0] for shape in shapes), shapes[0][1]
    if arrangement.columns:
        return (*leading, shapes[0][0], sum(shape[1] for shape in shapes))
    return (*leading, columns, rows) if arrangement.transposed else (*leading, rows, columns)


def take_apart(
    whole: SourceTensor,
    shapes: Sequence[tuple[int, int]],
    arrangement: Arrangement,
    experts: int = 1,
) -> Iterator[SourceTensor]:
    """Yield the matrices of a stack, those of the first expert first.

    Args:
        whole: The stacked tensor, which has the shape of `stacked_shape`.
        shapes: Shape [rows, columns] of each part of an expert.
        arrangement: How the parts are arranged.
        experts: Number of experts; 1 if the parts do not belong to experts.

    Raises:
        SourceError: The whole is stored in blocks that the arrangement would cut.
    """
    if whole.is_block and (arrangement.columns or arrangement.transposed):
        raise SourceError(
            "blocks along the columns of a stack cannot be split",
            where=whole.where,
            found=whole.dtype,
        )
    for expert in range(experts):
        for index, shape in enumerate(shapes):
            place = _place(arrangement, shapes, expert, index)
            yield replace(
                whole,
                name=f"{whole.name}[{expert}, {index}]",
                shape=shape,
                native=partial(_native, whole.native, place),
                decode=whole.decode and partial(_decoded, whole.decode, place, shape),
            )


def _place(
    arrangement: Arrangement, shapes: Sequence[tuple[int, int]], expert: int, index: int
) -> _Place:
    axis = 1 if arrangement.columns else 0
    total = sum(shape[axis] for shape in shapes)
    before = sum(shape[axis] for shape in shapes[:index])
    first, step = (index, len(shapes)) if arrangement.alternating else (before, 1)
    end = first + (shapes[index][axis] - 1) * step + 1
    across = shapes[0][1 - axis]
    if arrangement.columns:
        return _Place(slice(expert * across, (expert + 1) * across), slice(first, end, step))
    if arrangement.transposed:
        return _Place(slice(expert * across, (expert + 1) * across), slice(first, end, step), True)
    start = expert * total
    return _Place(slice(start + first, start + end, step), slice(None))


def _native(native: Callable[[], npt.NDArray[Any]], place: _Place) -> npt.NDArray[Any]:
    part = native()[place.rows, place.columns]
    return part.T if place.transposed else part


def _decoded(
    decode: Decode, place: _Place, shape: tuple[int, int], rows: slice, columns: slice
) -> F32Array:
    inner = (columns, rows) if place.transposed else (rows, columns)
    sizes = shape[::-1] if place.transposed else shape
    values = decode(
        _within(place.rows, inner[0], sizes[0]), _within(place.columns, inner[1], sizes[1])
    )
    return values.T if place.transposed else values


def _within(outer: slice, inner: slice, count: int) -> slice:
    """Return a slice of a slice that has `count` elements."""
    first, step = outer.start or 0, outer.step or 1
    begin, end, by = inner.indices(count)
    return slice(first + begin * step, first + (end - 1) * step + 1, step * by)


def arrange(parts: Sequence[npt.NDArray[Any]], arrangement: Arrangement) -> npt.NDArray[Any]:
    """Return the matrix in which a checkpoint stores some matrices, those of one expert."""
    axis = 1 if arrangement.columns else 0
    if arrangement.alternating:
        shape = tuple(
            size * (len(parts) if at == axis else 1) for at, size in enumerate(parts[0].shape)
        )
        joined: npt.NDArray[Any] = np.stack(parts, axis=axis + 1).reshape(shape)
    else:
        joined = np.concatenate(parts, axis=axis)
    return joined.T if arrangement.transposed else joined
