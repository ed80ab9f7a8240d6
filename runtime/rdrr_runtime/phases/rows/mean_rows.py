"""Means of consecutive rows: the pooling of the hidden states of packed texts."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 256
COLUMNS = 16
"""Threads of a workgroup that read a row together, 4 elements each."""


@dataclass(frozen=True, kw_only=True)
class MeanRows(Record):
    """Parameters of mean_rows.wgsl.

    Attributes:
        shifts: Whether a vector is subtracted.
        width: Elements of a row.
        columns: Threads that read a row together.
        factor: Factor on the means; None for 1.
    """

    shader = "rows/mean_rows"

    value: str = choice()
    shifts: bool = choice(default=False)
    width: int
    columns: int
    factor: float | None = None


@dataclass(frozen=True)
class MeanForm:
    """What is computed of the rows that are averaged.

    Attributes:
        width: Elements of a row, a multiple of 4.
        factor: Factor on the mean.
        shift: f32 [width], subtracted from the product; None for none.
    """

    width: int
    factor: float = 1.0
    shift: BufferSlice | None = None


def mean_rows(
    ctx: OpContext, ranges: BufferSlice, x: BufferSlice, y: BufferSlice, form: MeanForm, label: str
) -> list[Phase]:
    """Average rows, y[t, :] = factor * mean of x[ranges[t, 0] : ranges[t, 1], :] - shift.

    Args:
        ctx: Lowering context.
        ranges: u32 [texts, 2]; the executor runs the phase for the number of texts.
        x: [rows, width].
        y: f32 [texts, width]; a mean of zeros for an empty range.
        form: What is computed.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support the width, or x is too small.
    """
    width = form.width
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    record = MeanRows(
        threads=THREADS,
        value=ctx.values,
        shifts=form.shift is not None,
        width=width,
        columns=COLUMNS,
        factor=None if form.factor == 1 else form.factor,
    )
    buffers = {"ranges": ranges, "x": x, "y": y}
    buffers |= {} if form.shift is None else {"shift": form.shift}
    return [Phase(record, buffers, Work(-(-width // (4 * COLUMNS)), 1), label)]
