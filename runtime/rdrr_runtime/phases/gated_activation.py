"""The gated activation of a feed-forward block: SwiGLU or tanh-GeGLU (arXiv 2002.05202)."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.shaders import kernel

ACTIVATIONS = ("silu", "gelu_tanh")


def gated_activation(
    ctx: OpContext,
    gate: BufferSlice,
    up: BufferSlice | None,
    y: BufferSlice,
    *,
    width: int,
    activation: str,
    label: str,
) -> list[Dispatch]:
    """y = activation(gate) * up.

    Args:
        ctx: Where it is lowered to.
        gate: [rows, width], or [rows, 2 width] with gate first where up is None.
        up: [rows, width], or None.
        y: [rows, width]; another buffer than the inputs.
        width: Intermediate size, a multiple of 4.
        activation: `silu` or `gelu_tanh`.
        label: What the op is.

    Raises:
        FormatError: Another activation, or sizes that do not suit.
    """
    if activation not in ACTIVATIONS:
        raise FormatError(
            "unknown activation", where=label, expected=" or ".join(ACTIVATIONS), found=activation
        )
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * width)
    ctx.need_values(f"{label}: gate", gate, ctx.max_rows * width * (2 if up is None else 1))
    if up is None:
        inputs = {"gate_up": gate}
    else:
        ctx.need_values(f"{label}: up", up, ctx.max_rows * width)
        inputs = {"gate": gate, "up": up}
    what = kernel(
        "gated_activation",
        variables={"ACT": activation, "FUSED": up is None, "VALUE": ctx.values},
        constants={"WIDTH": width},
        variant=activation,
    )
    buffers = {"current": ctx.state.step, "y": y, **inputs}
    return [dispatch(what, buffers, Grid(-(-width // 256), 1, 1, 1), label)]
