"""The coefficients with which the parallel residual streams of a row are mixed (AltUp)."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice


@dataclass(frozen=True, kw_only=True)
class StreamCoefficientsRecord(Record):
    """Parameters of stream_coefficients.wgsl.

    Attributes:
        k: Inputs.
        streams: Streams of a row, the outputs of the router.
        outputs: Coefficients of a row.
        factor: Factor before tanh.
    """

    shader = "streams/stream_coefficients"

    subgroups: bool = choice()
    value: str = choice()
    k: int
    streams: int
    outputs: int
    factor: float


def stream_coefficients(
    ctx: OpContext,
    x: BufferSlice,
    weights: tuple[BufferSlice, BufferSlice],
    y: BufferSlice,
    *,
    sizes: tuple[int, int, int],
    factor: float,
    label: str,
) -> list[Phase]:
    """Compute y = tanh(factor * x R^T) W^T.

    Args:
        ctx: Lowering context.
        x: [rows, K].
        weights: R, f32 [streams, K], and W, f32 [outputs, streams].
        y: The result, [rows, outputs].
        sizes: K, a multiple of 4, the streams and the outputs.
        factor: Factor before tanh.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    k, streams, outputs = sizes
    need_multiple(f"{label}: inputs", k, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * k)
    need_floats(f"{label}: router", weights[0], streams * k)
    need_floats(f"{label}: weight", weights[1], outputs * streams)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * outputs)
    record = StreamCoefficientsRecord(
        threads=power_of_two(k // 4, 32, 256),
        subgroups=ctx.subgroups,
        value=ctx.values,
        k=k,
        streams=streams,
        outputs=outputs,
        factor=factor,
    )
    buffers = {"x": x, "router": weights[0], "weight": weights[1], "y": y}
    return [Phase(record, buffers, Work(1, 1), label)]
