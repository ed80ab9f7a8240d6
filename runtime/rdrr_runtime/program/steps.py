"""The load steps of a program: how its buffers are filled, most with tensors of a package."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rdrr_runtime.program.amounts import Count, Index, ProgramModel, Size, Word


class Constant(ProgramModel):
    """A load step: bytes that are written as they are.

    Attributes:
        range: Where they go.
        words: The data, u32.
    """

    kind: Literal["constant"]
    range: Index
    words: tuple[Word, ...]


class Rope(ProgramModel):
    """A load step: a table of cosines and sines, f32 [context, frequencies, 2].

    The angle of a position is `position * frequency`, in float64; the cosine, the sine and their
    product with the factor are rounded once.

    Attributes:
        range: Where it goes.
        frequencies: Radians per position.
        factor: Factor on cosines and sines.
    """

    kind: Literal["rope"]
    range: Index
    frequencies: tuple[float, ...]
    factor: float = 1.0


class Scale(ProgramModel):
    """How the weight w of a norm changes: to `factor * (w + offset) - offset`, in float64.

    Attributes:
        factor: The factor.
        offset: What the norm adds to the weight.
    """

    factor: float
    offset: float


class VectorPart(ProgramModel):
    """A tensor that is decoded to f32 and padded with zeros.

    Attributes:
        tensor: Name in the manifest.
        dtype: Type in the manifest.
        shape: Shape with the padding.
        scale: How values change before the padding; None if they do not.
    """

    tensor: str
    dtype: str
    shape: tuple[Count, ...]
    scale: Scale | None = None


class Vector(ProgramModel):
    """A load step: f32 tensors, one after the other.

    Attributes:
        range: Where they go.
        parts: The tensors.
    """

    kind: Literal["vector"]
    range: Index
    parts: tuple[VectorPart, ...]


class RowsPart(ProgramModel):
    """Rows of a matrix that lie in a buffer.

    Attributes:
        range: The buffer.
        first: Index of its first row in the matrix.
        rows: Rows that it has room for.
    """

    range: Index
    first: Count
    rows: Count


class Decoded(ProgramModel):
    """A tensor that the host decodes, since no kernel reads it as it is stored.

    It is decoded to f32 in its logical shape, padded with zeros, and encoded again.

    Attributes:
        dtype: F32, F16 or BF16.
        columns: Values of a row, with the padding.
    """

    dtype: Literal["F32", "F16", "BF16"]
    columns: Count


class Rows(ProgramModel):
    """A load step: rows of unquantized values, each padded with zeros to `stride` bytes.

    Attributes:
        tensor: Name in the manifest.
        dtype: Type in the manifest.
        decoded: What the host does to the tensor; None if its stored rows are written.
        rows: Rows, with the padding of a decoded tensor.
        row_bytes: Bytes of a row that is written.
        stride: Bytes from one row to the next.
        first: Index of the first row in the matrix, which may hold several tensors.
        parts: Where the rows of the matrix lie.
    """

    kind: Literal["rows"]
    tensor: str
    dtype: str
    decoded: Decoded | None = None
    rows: Count
    row_bytes: Size
    stride: Size
    first: Count = 0
    parts: tuple[RowsPart, ...]


class Write(ProgramModel):
    """A dispatch that repacks a chunk of stored rows into the planes of a matrix.

    Its kernel binds the chunk as `blocks`, the words of `target` as `chunk`, and `planes`.

    Attributes:
        kernel: Index of the kernel.
        planes: Index of the range.
        target: Words that tell the kernel where to write.
        items: Workgroups.
    """

    kernel: Index
    planes: Index
    target: Annotated[tuple[Word, ...], Field(min_length=1, max_length=64)]
    items: Size


class Chunk(ProgramModel):
    """Consecutive stored rows of a tensor.

    Attributes:
        first: Index of the first row.
        rows: Rows.
        writes: What repacks them.
    """

    first: Count
    rows: Size
    writes: tuple[Write, ...]


class Repack(ProgramModel):
    """A load step: a tensor in blocks, which kernels repack.

    Attributes:
        tensor: Name in the manifest.
        dtype: Type in the manifest.
        rows: Stored rows.
        row_bytes: Bytes of a stored row.
        chunks: The rows.
    """

    kind: Literal["repack"]
    tensor: str
    dtype: str
    rows: Count
    row_bytes: Size
    chunks: tuple[Chunk, ...]


LoadStep = Annotated[Constant | Rope | Vector | Rows | Repack, Field(discriminator="kind")]
