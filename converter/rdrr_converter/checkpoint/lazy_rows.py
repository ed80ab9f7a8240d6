"""Rows of bytes that are computed when they are taken, in place of an array in a mapped file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

_ALL = slice(None)


@dataclass(frozen=True)
class LazyRows:
    """A matrix of bytes of which only those rows are computed that a slice takes.

    All rows (`[:]`, `[:, columns]`) and rows by their numbers (`[array]`) stay a matrix of this
    kind, so that a part of them can be taken.

    Attributes:
        compute: Function of a slice of rows that returns them, uint8 [rows, bytes].
        columns: The bytes of each row that are taken.
        numbers: The rows that are taken, in this order; None for all.
    """

    compute: Callable[[slice], npt.NDArray[Any]]
    columns: slice = field(default_factory=lambda: _ALL)
    numbers: npt.NDArray[np.int64] | None = None
    dtype: ClassVar[np.dtype[np.uint8]] = np.dtype(np.uint8)

    def __getitem__(self, key: Any) -> Any:
        """Return some rows, or some bytes of some rows."""
        rows, columns = key if isinstance(key, tuple) else (key, _ALL)
        view = self if columns == _ALL else replace(self, columns=columns)
        if not isinstance(rows, slice):
            return replace(view, numbers=rows if self.numbers is None else self.numbers[rows])
        if rows == _ALL:
            return view
        if view.numbers is None:
            return view.compute(rows)[:, view.columns]
        numbers = view.numbers[rows]
        parts = [view.compute(run)[:, view.columns] for run in runs(numbers)]
        return np.concatenate(parts) if parts else view.compute(slice(0, 0))[:, view.columns]

    def opened(self) -> npt.NDArray[Any]:
        """Return the matrix itself, which serves where an array of a mapped file does."""
        return cast("npt.NDArray[Any]", self)


def runs(numbers: npt.NDArray[np.int64]) -> list[slice]:
    """Return the slices of rows that follow each other, which together are rows by numbers."""
    ends = [*(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
    starts = [0, *ends[:-1]]
    return [
        slice(int(numbers[start]), int(numbers[end - 1]) + 1)
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]
