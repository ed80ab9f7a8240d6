"""Appends a stream to the streams of each row, scaled to the magnitude of the first of them."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice


@dataclass(frozen=True, kw_only=True)
class AppendStreamRecord(Record):
    """Parameters of append_stream.wgsl.

    Attributes:
        width: Elements of a stream.
        before: Streams of a row of x.
        floor: Least mean square that y is divided by.
    """

    shader = "streams/append_stream"

    subgroups: bool = choice()
    value: str = choice()
    width: int
    before: int
    floor: float


def append_stream(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    z: BufferSlice,
    *,
    width: int,
    before: int,
    floor: float,
    label: str,
) -> list[Phase]:
    """Append a stream: z = [x, y * rms(x_0) / max(rms(y), sqrt(floor))].

    Args:
        ctx: Lowering context.
        x: [rows, before, width].
        y: [rows, width].
        z: The result, [rows, before + 1, width]; another buffer than x and y.
        width: Elements of a stream, a multiple of 4.
        before: Streams of a row of x.
        floor: Least mean square that y is divided by.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    need_multiple(f"{label}: width", width, 4)
    for name, buffer, count in (("x", x, before), ("y", y, 1), ("z", z, before + 1)):
        ctx.need_values(f"{label}: {name}", buffer, ctx.max_rows * count * width)
    record = AppendStreamRecord(
        threads=power_of_two(width // 4, 32, 256),
        subgroups=ctx.subgroups,
        value=ctx.values,
        width=width,
        before=before,
        floor=floor,
    )
    return [Phase(record, {"x": x, "y": y, "z": z}, Work(1, 1), label)]
