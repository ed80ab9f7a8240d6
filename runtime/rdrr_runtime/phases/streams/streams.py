"""Parallel residual streams (AltUp): mix them, correct them, add to them, or average them."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

MOST_STREAMS = 8
"""Streams that a thread holds in registers."""

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class Streams(Record):
    """Parameters of streams.wgsl; see `streams`."""

    shader = "streams/streams"

    mode: str = choice()
    value: str = choice()
    count: int = choice()
    stream: int = choice()
    width: int


def streams(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    *,
    mode: str,
    count: int,
    width: int,
    stream: int = 0,
    coefficients: BufferSlice | None = None,
    update: BufferSlice | None = None,
    label: str,
) -> list[Phase]:
    """Compute new streams, or their mean, from the streams of each row.

    Args:
        ctx: Lowering context.
        x: [rows, count, width].
        y: The result, [rows, count, width], or [rows, width] for the mean; not the buffer of x.
        mode: `mix`, `correct`, `add` or `mean`.
        count: Streams of a row.
        width: Elements of a stream, a multiple of 4.
        stream: For `correct` the stream that the update replaces, for `add` the first that changes.
        coefficients: For `mix` [rows, count, count], for `correct` [rows, count].
        update: For `correct` and `add`, [rows, width].
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    if not 1 <= count <= MOST_STREAMS:
        raise FormatError(
            "the number of streams is not supported",
            where=label,
            expected=f"1 to {MOST_STREAMS}",
            found=count,
        )
    need_multiple(f"{label}: width", width, 4)
    rows, whole = ctx.max_rows, count * width
    ctx.need_values(f"{label}: x", x, rows * whole)
    ctx.need_values(f"{label}: y", y, rows * (width if mode == "mean" else whole))
    buffers = {"x": x, "y": y}
    if coefficients is not None:
        size = count**2 if mode == "mix" else count
        ctx.need_values(f"{label}: coefficients", coefficients, rows * size)
        buffers["coefficients"] = coefficients
    if update is not None:
        ctx.need_values(f"{label}: update", update, rows * width)
        buffers["update"] = update
    record = Streams(
        threads=THREADS,
        variant=mode,
        mode=mode,
        value=ctx.values,
        count=count,
        stream=stream,
        width=width,
    )
    return [Phase(record, buffers, Work(-(-width // (4 * THREADS)), 1), label)]
