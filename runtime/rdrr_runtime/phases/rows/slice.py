"""Copies of a part of each group of a row, such as the queries beside the gates of a projection."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True)
class Part:
    """A part of each of several equal groups of a row; the sizes are multiples of 4.

    Attributes:
        groups: Groups of a row.
        size: Elements of a group.
        first: First element of the part within its group.
        width: Elements of the part.
    """

    groups: int
    size: int
    first: int
    width: int


@dataclass(frozen=True, kw_only=True)
class SliceRecord(Record):
    """Parameters of slice.wgsl.

    Attributes:
        part: What is copied.
    """

    shader = "rows/slice"

    value: str = choice()
    part: Part


def copy_part(
    ctx: OpContext, x: BufferSlice, y: BufferSlice, part: Part, *, label: str
) -> list[Phase]:
    """Copy a part of each group, y[r, g, :] = x[r, g, first : first + width].

    Args:
        ctx: Lowering context.
        x: [rows, groups, size].
        y: [rows, groups, width]; not the same buffer as x.
        part: What is copied.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    need_multiple(f"{label}: group", part.size, 4)
    need_multiple(f"{label}: part", part.width, 4)
    need_multiple(f"{label}: end of the part", part.first + part.width, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * part.groups * part.size)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * part.groups * part.width)
    record = SliceRecord(threads=THREADS, value=ctx.values, part=part)
    work = Work(-(-part.groups * part.width // (4 * THREADS)), 1)
    return [Phase(record, {"x": x, "y": y}, work, label)]
