"""Copies: of the rows that go to the head, and of a whole buffer to measure memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

ROW_THREADS = 64
THREADS = 256
MAX_GROUPS = 16_384


@dataclass(frozen=True, kw_only=True)
class CopyRow(Record):
    """Parameters of copy_row.wgsl.

    Attributes:
        width: Elements of a row.
        several: Whether to copy the last n rows, n being `last_n` of the step, or only the last.
    """

    shader = "rows/copy_row"

    value: str = choice()
    width: int
    several: bool


@dataclass(frozen=True, kw_only=True)
class Copy(Record):
    """Parameters of copy.wgsl.

    Attributes:
        words: Number of 16-byte words to copy.
        groups: Workgroups that share them.
    """

    shader = "rows/copy"
    trusted = True

    words: int
    groups: int


def copy_row(
    ctx: OpContext, x: BufferSlice, y: BufferSlice, *, width: int, several: bool = False, label: str
) -> list[Phase]:
    """Copy the last row, y[0, :] = x[rows - 1, :], so that the head computes only its logits.

    With `several`, copy the last n rows, where n is `last_n` of the step; the executor then runs
    the phase for n rows.
    """
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    ctx.need_values(f"{label}: y", y, (ctx.max_rows if several else 1) * width)
    record = CopyRow(threads=ROW_THREADS, value=ctx.values, width=width, several=several)
    work = Work(-(-width // ROW_THREADS), 1 if several else None)
    return [Phase(record, {"current": ctx.state.step, "x": x, "y": y}, work, label)]


def copy(x: BufferSlice, y: BufferSlice, *, label: str) -> list[Phase]:
    """Copy a buffer, y = x.

    Args:
        x: Source of any type; its size is a multiple of 16 bytes.
        y: Destination of the same size; not the same buffer as x.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The sizes differ or are not a multiple of 16 bytes.
    """
    if x.size % 16 or y.size != x.size:
        raise FormatError(
            "the sizes of the buffers do not allow a copy",
            where=label,
            expected=f"{x.size // 16 * 16} bytes in both",
            found=f"{x.size} and {y.size}",
        )
    words = x.size // 16
    record = Copy(threads=THREADS, words=words, groups=min(MAX_GROUPS, -(-words // THREADS)))
    return [Phase(record, {"x": x, "y": y}, Work(record.groups), label)]
