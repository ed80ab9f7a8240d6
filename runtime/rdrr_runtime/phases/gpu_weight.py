"""A matrix in GPU memory, in the form that `rdrr_runtime.phases.formats` describes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DType
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.formats import FORMATS, UNIT, GpuFormat, PlaneOffsets, format_of


@dataclass(frozen=True)
class Part:
    """A run of rows in one buffer.

    Attributes:
        slice: The buffer.
        first_row: The first of them in the matrix.
        rows: How many, those without meaning at the end of a matrix included.
    """

    slice: BufferSlice
    first_row: int
    rows: int


@dataclass(frozen=True)
class GpuWeight:
    """A matrix [N, K] in GPU memory, or several of one shape as one.

    Attributes:
        dtype: Storage type.
        layout: `row` or `column`: whether blocks lie along K or N. Blocks that cross rows are
            `row` here. Single values lie row-major, in `column` column-major.
        n: Outputs, of all matrices together.
        k: Inputs.
        units: Units of a row: of 64 codes, or of 16 bytes of single values.
        stride: Rows from one matrix to the next, at least its outputs.
        parts: Rows, split where a buffer would exceed the binding limit.
        note: Why it is not in the form the package stores it in; empty if it is.
        row_scales: f32 [N] that products in two planes of int8 need, see `row_scales`,
            or None.
    """

    dtype: DType
    layout: Layout
    n: int
    k: int
    units: int
    stride: int
    parts: tuple[Part, ...]
    note: str = ""
    row_scales: BufferSlice | None = None

    @property
    def form(self) -> GpuFormat:
        """How it lies in its buffers."""
        return format_of(self.dtype.name, column=self.by_column)

    @property
    def by_column(self) -> bool:
        """Whether its blocks lie along N."""
        return self.layout is Layout.COLUMN and self.dtype.is_block

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        scales = self.row_scales.size if self.row_scales else 0
        return sum(part.slice.size for part in self.parts) + scales

    def outputs(self, part: Part) -> int:
        """Rows of a part that carry meaning, of a single matrix."""
        return min(part.rows, self.n - part.first_row)

    def plane_offsets(self, part: Part) -> PlaneOffsets:
        """Return where shaders find what they read of a part."""
        return self.form.plane_offsets(part.rows, self.units)


def allocate_weight(
    arena: Arena,
    dtype: DType,
    layout: Layout,
    shape: tuple[int, int],
    label: str,
    *,
    count: int = 1,
) -> GpuWeight:
    """A zeroed matrix.

    Args:
        arena: Owner of the buffers.
        dtype: Storage type.
        layout: Order in storage.
        shape: (N, K), of each of `count` matrices.
        label: Name of the tensor, for messages and buffer labels.
        count: Matrices that become one.

    Raises:
        FormatError: No kernel reads the form, or a row exceeds the binding limit.
        DeviceError: Out of memory.
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
    parts = tuple(_parts(arena, form, rows * count, units, label))
    kept = Layout.ROW if layout is Layout.FLAT else layout
    return GpuWeight(dtype, kept, n * count, k, units, rows, parts)


def _form(dtype: DType, layout: Layout, k: int, label: str) -> GpuFormat:
    """The format of a matrix.

    Raises:
        FormatError: No kernel reads it.
    """
    if dtype.name not in FORMATS:
        raise FormatError(
            "no kernel reads this type", where=label, expected=", ".join(FORMATS), found=dtype.name
        )
    if layout is Layout.FLAT and not reads_flat(dtype, k):
        raise FormatError(
            "flat blocks cross rows where no kernel reads them",
            where=label,
            expected=f"a multiple of {UNIT}",
            found=k,
            hint="dequantize the tensor when it is loaded",
        )
    return format_of(dtype.name, column=layout is Layout.COLUMN and dtype.is_block)


def reads_flat(dtype: DType, k: int) -> bool:
    """Whether rows of `k` inputs are whole units where blocks run across them."""
    return k % dtype.block_elements == 0 or k % UNIT == 0


def _parts(arena: Arena, form: GpuFormat, rows: int, units: int, label: str) -> Iterator[Part]:
    fit = arena.max_binding // (form.size(form.step, units) or 1) * form.step
    if fit <= 0 or not rows:
        raise FormatError(
            "matrix has no rows or a row beyond the binding limit",
            where=label,
            found=f"{rows} rows of {form.size(form.step, units) // form.step} bytes",
        )
    for first in range(0, rows, fit):
        some = min(fit, rows - first)
        yield Part(arena.empty(f"{label}.{first}", form.size(some, units)), first, some)
