"""A weight matrix in GPU memory, in the layout that `formats` defines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DType
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.weights.formats import FORMATS, UNIT, GpuFormat, PlaneOffsets, format_of


@dataclass(frozen=True)
class Part:
    """A contiguous range of the rows of a matrix, in one buffer.

    Attributes:
        slice: The buffer.
        first_row: Index of the first row in the matrix.
        rows: Number of rows, including padding rows at the end of a matrix.
    """

    slice: BufferSlice
    first_row: int
    rows: int


@dataclass(frozen=True)
class GpuWeight:
    """A matrix [N, K] in GPU memory, or a stack of matrices of one shape (experts).

    Attributes:
        dtype: Storage type.
        layout: `row` if blocks lie along K, `column` if they lie along N. Flat blocks, which may
            cross rows, count as `row`. Unquantized values are row-major or column-major.
        n: Outputs (rows) of all matrices of the stack together.
        k: Inputs (columns).
        units: Units of a row; a unit is 64 codes, or 16 bytes of unquantized values.
        stride: Rows from one matrix of the stack to the next, at least its outputs.
        parts: Row ranges, one for each buffer; a matrix beyond the binding limit has several.
        units_first: Whether the units of all rows for the same inputs lie side by side.
        note: Why the weight is not in the form in which the package stores it; empty if it is.
    """

    dtype: DType
    layout: Layout
    n: int
    k: int
    units: int
    stride: int
    parts: tuple[Part, ...]
    units_first: bool = False
    note: str = ""

    @property
    def form(self) -> GpuFormat:
        """Memory layout of the matrix."""
        return format_of(self.dtype.name, column=self.by_column, units_first=self.units_first)

    @property
    def by_column(self) -> bool:
        """Whether the matrix is quantized with blocks along N."""
        return self.layout is Layout.COLUMN and self.dtype.is_block

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        return sum(part.slice.size for part in self.parts)

    def outputs(self, part: Part) -> int:
        """Return the rows of a part without padding rows; only for a single matrix."""
        return min(part.rows, self.n - part.first_row)

    def plane_offsets(self, part: Part) -> PlaneOffsets:
        """Return where the planes begin in the buffer of a part."""
        return self.form.plane_offsets(part.rows, self.units)


def allocate_weight(
    arena: Arena,
    dtype: DType,
    layout: Layout,
    shape: tuple[int, int],
    label: str,
    *,
    count: int = 1,
    units_first: bool = False,
) -> GpuWeight:
    """Allocate a zeroed matrix, or a stack of them.

    Args:
        arena: Owner of the buffers.
        dtype: Storage type.
        layout: Layout in storage.
        shape: (N, K) of each of the `count` matrices.
        label: Name of the tensor, for messages and buffer labels.
        count: Matrices in the stack.
        units_first: Whether the units of all rows for the same inputs lie side by side, where the
            format can have that, see `GpuFormat.with_units_first`.

    Raises:
        FormatError: No kernel reads the type or layout, or a row exceeds the binding limit.
        DeviceError: The device is out of memory.
    """
    n, k = shape
    form = _form(dtype, layout, k, label)
    if form.values and layout is Layout.COLUMN:
        rows, units = k, form.units(n)
    elif layout is Layout.FLAT:
        rows, units = n, k // UNIT
    else:
        block = dtype.block_elements
        rows, units = n, form.units(k, padded=block)
        if form.column:
            rows = -(-n // block) * block
    if units_first:
        form = form.with_units_first(units)
    parts = tuple(_parts(arena, form, rows * count, units, label))
    kept = Layout.ROW if layout is Layout.FLAT else layout
    return GpuWeight(dtype, kept, n * count, k, units, rows, parts, form.units_first)


def _form(dtype: DType, layout: Layout, k: int, label: str) -> GpuFormat:
    """Return the memory layout of a matrix.

    Raises:
        FormatError: No kernel reads the type or layout.
    """
    if dtype.name not in FORMATS:
        raise FormatError(
            "no kernel reads this type", where=label, expected=", ".join(FORMATS), found=dtype.name
        )
    if layout is Layout.FLAT and not reads_flat(dtype, k):
        raise FormatError(
            "flat blocks cross rows within a unit of weights, which no kernel reads",
            where=label,
            expected=f"a row length that is a multiple of {UNIT}",
            found=k,
            hint="dequantize the tensor when it is loaded",
        )
    return format_of(dtype.name, column=layout is Layout.COLUMN and dtype.is_block)


def reads_flat(dtype: DType, k: int) -> bool:
    """Return whether kernels read flat blocks in rows of `k` inputs.

    They do if each row consists of whole blocks, or at least of whole units of 64 weights.
    """
    return k % dtype.block_elements == 0 or k % UNIT == 0


def _parts(arena: Arena, form: GpuFormat, rows: int, units: int, label: str) -> Iterator[Part]:
    fit = arena.max_binding // (form.size(form.step, units) or 1) * form.step
    if fit <= 0 or not rows:
        raise FormatError(
            "the matrix has no rows, or a row exceeds the binding limit",
            where=label,
            found=f"{rows} rows of {form.size(form.step, units) // form.step} bytes",
        )
    for first in range(0, rows, fit):
        some = min(fit, rows - first)
        yield Part(arena.empty(f"{label}.{first}", form.size(some, units)), first, some)
