"""Values between limits that a buffer holds."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class Limit(Record):
    """Parameters of limit.wgsl.

    Attributes:
        width: Elements of a row.
        first: Index of the least value in the limits; the most follows.
    """

    shader = "rows/limit"

    value: str = choice()
    width: int
    first: int


def limit(
    ctx: OpContext,
    x: BufferSlice,
    limits: BufferSlice,
    y: BufferSlice,
    *,
    width: int,
    first: int,
    label: str,
) -> list[Phase]:
    """Compute y = min(max(x, limits[first]), limits[first + 1]).

    Args:
        ctx: Lowering context.
        x: [rows, width].
        limits: f32, the least and the most value, perhaps of several.
        y: [rows, width]; not the same buffer as x.
        width: Elements of a row, a multiple of 4.
        first: Index of the least value.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support the width, or a buffer is too small.
    """
    need_multiple(f"{label}: width", width, 4)
    need_floats(f"{label}: limits", limits, first + 2)
    for name, buffer in (("x", x), ("y", y)):
        ctx.need_values(f"{label}: {name}", buffer, ctx.max_rows * width)
    record = Limit(threads=THREADS, value=ctx.values, width=width, first=first)
    buffers = {"x": x, "limits": limits, "y": y}
    return [Phase(record, buffers, Work(-(-width // (4 * THREADS)), 1), label)]
