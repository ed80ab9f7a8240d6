"""The gated activation of a feed-forward block, such as SwiGLU or GeGLU (arXiv 2002.05202)."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.activation import check_activation
from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class GatedActivationRecord(Record):
    """Parameters of gated_activation.wgsl.

    Attributes:
        act: One of `rdrr_runtime.phases.activation.ACTIVATIONS`.
        fused: Whether gate and up are the two halves of one row.
        value: Type of the activations, `f32` or `f16`.
        width: Elements of a row of y, the intermediate size.
    """

    shader = "gated_activation"

    act: str = choice()
    fused: bool = choice()
    value: str = choice()
    width: int


def gated_activation(
    ctx: OpContext,
    gate: BufferSlice,
    up: BufferSlice | None,
    y: BufferSlice,
    *,
    width: int,
    activation: str,
    label: str,
) -> list[Phase]:
    """Compute y = activation(gate) * up.

    Args:
        ctx: Lowering context.
        gate: [rows, width], or [rows, 2 width] with gate then up if `up` is None.
        up: [rows, width], or None.
        y: [rows, width]; not the same buffer as the inputs.
        width: Intermediate size, a multiple of 4.
        activation: One of `rdrr_runtime.phases.activation.ACTIVATIONS`.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The activation is unknown, the kernel does not support a size, or a buffer is
            too small.
    """
    check_activation(activation, label)
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * width)
    ctx.need_values(f"{label}: gate", gate, ctx.max_rows * width * (2 if up is None else 1))
    if up is None:
        inputs = {"gate_up": gate}
    else:
        ctx.need_values(f"{label}: up", up, ctx.max_rows * width)
        inputs = {"gate": gate, "up": up}
    record = GatedActivationRecord(
        threads=THREADS,
        variant=activation,
        act=activation,
        fused=up is None,
        value=ctx.values,
        width=width,
    )
    work = Work(-(-width // (4 * THREADS)), 1)
    return [Phase(record, {"y": y, **inputs}, work, label)]
