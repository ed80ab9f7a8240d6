"""Interpolated embedding: add a weighted sum of four rows of a table to each row, in place."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64
NEIGHBOURS = 4
"""Rows of the table that are weighted for a row."""


@dataclass(frozen=True, kw_only=True)
class Interpolate(Record):
    """Parameters of interpolate.wgsl.

    Attributes:
        width: Elements of a row.
    """

    shader = "rows/interpolate"

    value: str = choice()
    width: int


def interpolate(
    ctx: OpContext,
    x: BufferSlice,
    table: BufferSlice,
    nearest: BufferSlice,
    factors: BufferSlice,
    *,
    width: int,
    label: str,
) -> list[Phase]:
    """Add x[r, :] += sum over j of factors[r, j] * table[nearest[r, j], :].

    Args:
        ctx: Lowering context.
        x: [rows, width].
        table: f32 [table rows, width].
        nearest: Rows of the table, u32 [rows, 4].
        factors: f32 [rows, 4].
        width: Elements of a row.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support the width, or a buffer is too small.
    """
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    need_floats(f"{label}: factors", factors, NEIGHBOURS * ctx.max_rows)
    record = Interpolate(threads=THREADS, value=ctx.values, width=width)
    buffers = {"nearest": nearest, "factors": factors, "table": table, "x": x}
    return [Phase(record, buffers, Work(-(-width // (4 * THREADS)), 1), label)]
