"""Scale of the queries by their position, which keeps attention sharp in long contexts."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class PositionScaleRecord(Record):
    """Parameters of position_scale.wgsl.

    Attributes:
        width: Elements of a row.
        scale: Factor on the logarithm.
        length: Positions that share one factor.
        offset: Added to the position.
    """

    shader = "attention/position_scale"

    value: str = choice()
    width: int
    scale: float
    length: int
    offset: int


def position_scale(
    ctx: OpContext,
    x: BufferSlice,
    *,
    width: int,
    scale: float,
    length: int,
    offset: int,
    label: str,
) -> list[Phase]:
    """Multiply each row by 1 + scale * ln(1 + floor((position + offset) / length)), in place.

    Args:
        ctx: Lowering context; its state holds the positions.
        x: [rows, width].
        width: Elements of a row.
        scale: Factor on the logarithm.
        length: Positions that share one factor.
        offset: Added to the position.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The buffer is too small.
    """
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    record = PositionScaleRecord(
        threads=THREADS,
        value=ctx.values,
        width=width,
        scale=scale,
        length=length,
        offset=offset,
    )
    buffers = {"current": ctx.state.step, "x": x}
    return [Phase(record, buffers, Work(-(-width // THREADS), 1), label)]
