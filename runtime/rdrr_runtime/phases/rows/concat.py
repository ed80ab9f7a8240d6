"""The concatenation of two values, row by row."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class ConcatRecord(Record):
    """Parameters of concat.wgsl.

    Attributes:
        first: Elements of a row of the first value.
        second: Elements of a row of the second value.
    """

    shader = "rows/concat"

    value: str = choice()
    first: int
    second: int


def concat(
    ctx: OpContext,
    values: tuple[BufferSlice, BufferSlice],
    widths: tuple[int, int],
    z: BufferSlice,
    *,
    label: str,
) -> list[Phase]:
    """Concatenate two values, z[r, :] = [x[r, :], y[r, :]].

    Args:
        ctx: Lowering context.
        values: x and y, [rows, width] each.
        widths: Their widths, multiples of 4.
        z: [rows, sum of the widths]; another buffer than x and y.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a width, or a buffer is too small.
    """
    for name, value, width in zip("xy", values, widths, strict=True):
        need_multiple(f"{label}: {name}", width, 4)
        ctx.need_values(f"{label}: {name}", value, ctx.max_rows * width)
    ctx.need_values(f"{label}: z", z, ctx.max_rows * sum(widths))
    record = ConcatRecord(threads=THREADS, value=ctx.values, first=widths[0], second=widths[1])
    work = Work(-(-sum(widths) // (4 * THREADS)), 1)
    return [Phase(record, {"x": values[0], "y": values[1], "z": z}, work, label)]
