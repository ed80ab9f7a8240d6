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
    """Parameters of streams.wgsl.

    Attributes:
        mode: `mix`, `correct`, `add` or `mean`.
        count: Streams of a row.
        stream: For `correct` the stream that the update replaces, for `add` the first that changes.
        width: Elements of a stream.
    """

    shader = "streams/streams"

    mode: str = choice()
    value: str = choice()
    count: int = choice()
    stream: int = choice()
    width: int


@dataclass(frozen=True)
class StreamsSpec:
    """What is done with the streams of a row.

    Attributes:
        mode: `mix`, `correct`, `add` or `mean`.
        count: Streams of a row.
        width: Elements of a stream, a multiple of 4.
        stream: For `correct` the stream that the update replaces, for `add` the first that changes.
    """

    mode: str
    count: int
    width: int
    stream: int = 0


def streams(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    spec: StreamsSpec,
    *,
    coefficients: BufferSlice | None = None,
    update: BufferSlice | None = None,
    label: str,
) -> list[Phase]:
    """Compute new streams, or their mean, from the streams of each row.

    Args:
        ctx: Lowering context.
        x: [rows, count, width].
        y: The result, [rows, count, width], or [rows, width] for the mean; not the buffer of x.
        spec: What is computed.
        coefficients: For `mix` [rows, count, count], for `correct` [rows, count].
        update: For `correct` and `add`, [rows, width].
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    if not 1 <= spec.count <= MOST_STREAMS:
        raise FormatError(
            "the number of streams is not supported",
            where=label,
            expected=f"1 to {MOST_STREAMS}",
            found=spec.count,
        )
    need_multiple(f"{label}: width", spec.width, 4)
    rows, whole = ctx.max_rows, spec.count * spec.width
    ctx.need_values(f"{label}: x", x, rows * whole)
    ctx.need_values(f"{label}: y", y, rows * (spec.width if spec.mode == "mean" else whole))
    buffers = {"x": x, "y": y}
    if coefficients is not None:
        size = spec.count**2 if spec.mode == "mix" else spec.count
        ctx.need_values(f"{label}: coefficients", coefficients, rows * size)
        buffers["coefficients"] = coefficients
    if update is not None:
        ctx.need_values(f"{label}: update", update, rows * spec.width)
        buffers["update"] = update
    record = Streams(
        threads=THREADS,
        variant=spec.mode,
        mode=spec.mode,
        value=ctx.values,
        count=spec.count,
        stream=spec.stream,
        width=spec.width,
    )
    return [Phase(record, buffers, Work(-(-spec.width // (4 * THREADS)), 1), label)]
