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
        value: Type of the activations, `f32` or `f16`.
        width: Elements of a row.
        columns: Threads that read a row together.
    """

    shader = "rows/mean_rows"

    value: str = choice()
    width: int
    columns: int


def mean_rows(
    ctx: OpContext, ranges: BufferSlice, x: BufferSlice, y: BufferSlice, *, width: int, label: str
) -> list[Phase]:
    """Average consecutive rows, y[t, :] = mean of x[ranges[t, 0] : ranges[t, 1], :].

    Args:
        ctx: Lowering context.
        ranges: u32 [texts, 2]; the executor runs the phase for the number of texts.
        x: [rows, width].
        y: f32 [texts, width]; zeros for an empty range.
        width: Elements of a row, a multiple of 4.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support the width, or x is too small.
    """
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    record = MeanRows(threads=THREADS, value=ctx.values, width=width, columns=COLUMNS)
    work = Work(-(-width // (4 * COLUMNS)), 1)
    return [Phase(record, {"ranges": ranges, "x": x, "y": y}, work, label)]
