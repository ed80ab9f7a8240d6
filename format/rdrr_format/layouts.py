"""Where the weights of a tensor lie in its bytes: the one place that knows sizes and strides.

Shapes are logical: a matmul weight is [N, K] (outputs, inputs) whatever its storage.

    row      N rows of K weights, each row padded to whole blocks along K
    column   the transposed matrix: K rows of N weights, each padded along N
    flat     one row of all the weights; blocks cross logical rows, only the tail is padded

A scalar type has blocks of one weight, so nothing is ever padded, and `flat` equals `row`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Literal

from rdrr_format.dtypes import DType
from rdrr_format.errors import FormatError


class Layout(StrEnum):
    """Order of a tensor's weights in storage."""

    ROW = "row"
    COLUMN = "column"
    FLAT = "flat"


LayoutName = Literal["row", "column", "flat"]
"""The values of `Layout`, for annotations."""

_SPELLINGS = {
    "row": Layout.ROW,
    "row_wise": Layout.ROW,
    "column": Layout.COLUMN,
    "col": Layout.COLUMN,
    "column_wise": Layout.COLUMN,
    "flat": Layout.FLAT,
}


def parse_layout(text: str) -> Layout:
    """The layout that a manifest of any generation names.

    Raises:
        FormatError: The name is unknown.
    """
    found = _SPELLINGS.get(text.lower())
    if found is None:
        raise FormatError("unknown layout", expected="row, column or flat", found=text)
    return found


@dataclass(frozen=True)
class Geometry:
    """Stored rows of a tensor.

    Attributes:
        rows: Number of stored rows.
        row_elements: Weights in a row that carry meaning; the rest of the last block is padding.
        row_blocks: Blocks in a row.
        row_bytes: Bytes of a row.
        block_elements: Weights in a block of the type.
    """

    rows: int
    row_elements: int
    row_blocks: int
    row_bytes: int
    block_elements: int

    @property
    def size(self) -> int:
        """Bytes of the whole tensor."""
        return self.rows * self.row_bytes

    @property
    def padding(self) -> int:
        """Weights stored beyond those that carry meaning, over all rows (0 for scalar types)."""
        return self.rows * (self.row_blocks * self.block_elements - self.row_elements)


def geometry(dtype: DType, shape: Sequence[int], layout: Layout = Layout.ROW) -> Geometry:
    """Stored rows, blocks and bytes of a tensor.

    Args:
        dtype: Storage type.
        shape: Logical shape; leading dimensions of a tensor with more than two are rows.
        layout: Order in storage; `column` needs exactly two dimensions.

    Raises:
        FormatError: A negative dimension, or `column` for a tensor that is not a matrix.
    """
    if any(size < 0 for size in shape):
        raise FormatError("negative dimension", found=list(shape))
    if layout is Layout.COLUMN:
        if len(shape) != 2:
            raise FormatError("layout column needs a matrix", expected="[N, K]", found=list(shape))
        rows, elements = shape[1], shape[0]
    elif layout is Layout.FLAT or not shape:
        rows, elements = 1, prod(shape)
    else:
        rows, elements = prod(shape[:-1]), shape[-1]
    blocks = -(-elements // dtype.block_elements)
    return Geometry(rows, elements, blocks, blocks * dtype.block_bytes, dtype.block_elements)
