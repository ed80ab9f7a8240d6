"""Parts of a stack whose rows alternate in several pieces for each group of heads.

Qwen 3 Next stores the projections of linear attention as one matrix. For each key head it has the
rows of the head's query, then of its key, its values and their gates. A part of such a stack is
read with its own rows in the order of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_converter.checkpoint.lazy_rows import runs
from rdrr_converter.checkpoint.source import Decode, F32Array, SourceTensor

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """A run of rows that each group of a stack has.

    Attributes:
        part: Index of the part that the rows belong to.
        rows: Number of rows.
    """

    part: int
    rows: int


def rows_of_parts(pieces: Sequence[Piece], groups: int) -> list[Rows]:
    """Return the rows of the stack that each part consists of, in its order.

    A part holds its first piece of all groups, then its second, and so on.
    """
    period = sum(piece.rows for piece in pieces)
    firsts = np.arange(groups, dtype=np.int64)[:, None] * period
    parts: dict[int, list[Rows]] = {}
    offset = 0
    for piece in pieces:
        indices = firsts + np.arange(offset, offset + piece.rows, dtype=np.int64)
        parts.setdefault(piece.part, []).append(indices.reshape(-1))
        offset += piece.rows
    return [np.concatenate(parts[index]) for index in sorted(parts)]


def with_rows(whole: SourceTensor, rows: Rows, label: str) -> SourceTensor:
    """Return a matrix that consists of some rows of a matrix, in the given order."""
    decode = None if whole.decode is None else partial(_decoded, whole.decode, rows)
    return replace(
        whole,
        name=f"{whole.name}[{label}]",
        shape=(len(rows), whole.columns),
        native=partial(_taken, whole, rows),
        decode=decode,
    )


def in_order(whole: SourceTensor, order: Rows) -> SourceTensor:
    """Return a matrix with its rows in another order, or a vector with its elements."""
    if len(whole.shape) > 1:
        return with_rows(whole, order, "reordered")
    return replace(
        whole,
        native=partial(_elements, whole.native, order),
        decode=whole.decode and partial(_decoded_elements, whole.decode, order),
    )


def _elements(native: Callable[[], npt.NDArray[Any]], order: Rows) -> npt.NDArray[Any]:
    return native()[:, order]


def _decoded_elements(decode: Decode, order: Rows, rows: slice, columns: slice) -> F32Array:
    return decode(rows, slice(None))[:, order[columns]]


def _taken(whole: SourceTensor, rows: Rows) -> npt.NDArray[Any]:
    return whole.native()[rows]


def _decoded(decode: Decode, rows: Rows, some: slice, columns: slice) -> F32Array:
    """Decode rows in runs that follow each other in the stack."""
    parts = [decode(run, columns) for run in runs(rows[some])]
    return np.concatenate(parts) if parts else decode(slice(0, 0), columns)
