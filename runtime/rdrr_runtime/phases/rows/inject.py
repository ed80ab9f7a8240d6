"""Features of images, in the rows of a pass that are tokens of images."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class Inject(Record):
    """Parameters of inject.wgsl.

    Attributes:
        adds: Whether the features are added, instead of replacing the rows.
        width: Elements of a row.
        first: The token from which on tokens are those of images.
    """

    shader = "rows/inject"

    value: str = choice()
    adds: bool = choice()
    width: int
    first: int


def inject(
    ctx: OpContext,
    x: BufferSlice,
    features: BufferSlice,
    *,
    width: int,
    first: int,
    adds: bool,
    label: str,
) -> list[Phase]:
    """Replace the rows of images, or add to them; rows of text stay as they are.

    Args:
        ctx: Lowering context; its state holds the tokens.
        x: The residual stream [rows, width].
        features: Features of each row of the pass, f32 [rows, width].
        width: Elements of a row.
        first: The token from which on tokens are those of images.
        adds: Whether to add.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: A buffer is too small.
    """
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    need_floats(f"{label}: features", features, ctx.max_rows * width)
    record = Inject(threads=THREADS, value=ctx.values, adds=adds, width=width, first=first)
    buffers = {"current": ctx.state.step, "x": x, "features": features}
    return [Phase(record, buffers, Work(-(-width // THREADS), 1), label)]
