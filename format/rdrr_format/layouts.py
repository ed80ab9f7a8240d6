"""The order in which a tensor's weights are stored, and the sizes and strides that follow from it.

Shapes are logical: a matmul weight is [N, K] (outputs, inputs) in every layout.

    row      row-major: N rows of K weights, each row padded along K to a multiple of the block size
    column   column-major: K rows of N weights, each padded along N
    flat     one row with all weights; blocks cross logical rows, and only the end is padded

A scalar type has blocks of one weight, so it is never padded and `flat` is the same as `row`.
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
    """Return the layout of a name as manifests of any generation spell it.

    Raises:
        FormatError: The name is unknown.
    """
    layout = _SPELLINGS.get(text.lower())
    if layout is None:
        raise FormatError("unknown layout", expected="row, column or flat", found=text)
    return layout


@dataclass(frozen=True)
class Geometry:
    """The stored rows of a tensor and their sizes.

    Attributes:
        rows: Number of stored rows.
        row_elements: Weights in a row, without the padding of its last block.
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
        """Number of padding weights in all rows together (0 for scalar types)."""
        return self.rows * (self.row_blocks * self.block_elements - self.row_elements)


def geometry(dtype: DType, shape: Sequence[int], layout: Layout = Layout.ROW) -> Geometry:
    """Return the number and size of a tensor's stored rows.

    Args:
        dtype: Storage type.
        shape: Logical shape; all dimensions but the last count as rows.
        layout: Storage order; `column` needs exactly two dimensions.

    Raises:
        FormatError: A dimension is negative, or the layout is `column` and the tensor is not a
            matrix.
    """
    if any(size < 0 for size in shape):
        raise FormatError("negative dimension", found=list(shape))
    if layout is Layout.COLUMN:
        if len(shape) != 2:
            raise FormatError(
                "the layout column needs a matrix", expected="[N, K]", found=list(shape)
            )
        rows, elements = shape[1], shape[0]
    elif layout is Layout.FLAT or not shape:
        rows, elements = 1, prod(shape)
    else:
        rows, elements = prod(shape[:-1]), shape[-1]
    blocks = -(-elements // dtype.block_elements)
    return Geometry(rows, elements, blocks, blocks * dtype.block_bytes, dtype.block_elements)
