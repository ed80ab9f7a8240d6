"""A planned tensor of a checkpoint to write: its parts in the package, and its form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS
from rdrr_manifests.logical import LogicalTensor

Stack = tuple[str, tuple[LogicalTensor, ...]]
"""A name in the checkpoint, and the tensors that are stacked under it, from the top down."""

RowOrder = Callable[[int, int], npt.NDArray[np.intp]]
"""A function from (first, count) to the model's indices of the checkpoint rows `first` to
`first + count`."""

Arrange = Callable[[Sequence[npt.NDArray[Any]]], npt.NDArray[Any]]
"""A function of the scalars of all parts, each [rows, columns], that returns the stored matrix."""

Transform = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class OutgoingTensor:
    """A planned tensor of the checkpoint.

    Attributes:
        name: Name in the checkpoint.
        parts: The tensors of the package that it consists of, from the top down; all have the same
            number of columns.
        shape: Shape in the checkpoint; a stack may have an additional dimension for its parts.
        dtype: Type to write: a scalar type, or the stored block type to copy blocks.
        why: Reason if blocks cannot be copied; otherwise empty.
        shift: Constant that is added to every value.
        order: Order of the rows of a tensor with one part; None for the order of the model.
        row_step: Number of consecutive rows within which `order` permutes rows.
        vector_order: Order of the values of a vector in F32.
        arrange: Function that makes the stored matrix from the scalars of all parts, each
            [rows, columns], where it is not their concatenation; all are in memory for it. Rows
            of blocks are given as bytes.
        at_a_time: Number of parts that `arrange` takes at a time, such as those of one expert;
            None for all.
        transform: Function that is applied to every value, in float64.
        padding: Number of copies of the first row that are added at the end.
        factors: Factor of each row, over all parts; None for 1. It multiplies the scales of blocks.
    """

    name: str
    parts: tuple[LogicalTensor, ...]
    shape: tuple[int, ...]
    dtype: str
    why: str = ""
    shift: float = 0.0
    order: RowOrder | None = None
    row_step: int = 1
    vector_order: npt.NDArray[np.intp] | None = None
    arrange: Arrange | None = None
    at_a_time: int | None = None
    transform: Transform | None = None
    padding: int = 0
    factors: npt.NDArray[np.float64] | None = None

    @property
    def is_as_stored(self) -> bool:
        """Whether the stored bytes are copied."""
        is_changed = self.shift or self.transform is not None or self.factors is not None
        return not is_changed and self.keeps_type

    @property
    def keeps_type(self) -> bool:
        """Whether the tensor is written in the type in which all parts are stored."""
        return all(part.dtype.name == self.dtype for part in self.parts)

    @property
    def columns(self) -> int:
        """Number of columns of the matrix view."""
        return self.parts[0].columns

    @property
    def weights(self) -> int:
        """Number of values."""
        return sum(part.rows * part.columns for part in self.parts)

    @property
    def size(self) -> int:
        """Size in the checkpoint in bytes."""
        row_bytes = CODECS[self.dtype].row_bytes
        # The parts of a vector differ in their columns.
        size = sum(part.rows * row_bytes(part.columns) for part in self.parts)
        return size + self.padding * row_bytes(self.columns)
