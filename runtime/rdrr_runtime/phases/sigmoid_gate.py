"""One factor for each row of a branch: how much the expert that all rows share counts."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import power_of_two


def sigmoid_gate(
    ctx: OpContext,
    x: BufferSlice,
    weight: BufferSlice,
    branch: BufferSlice,
    *,
    k: int,
    width: int,
    label: str,
) -> list[Dispatch]:
    """branch = branch * sigmoid(x w), in place.

    Args:
        ctx: Where it is lowered to.
        x: [rows, k].
        weight: f32 [k].
        branch: [rows, width]; another buffer than x.
        k: Inputs, a multiple of 4.
        width: Elements of a branch's row, a multiple of 4.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    need_multiple(f"{label}: inputs", k, 4)
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * k)
    need_floats(f"{label}: weight", weight, k)
    ctx.need_values(f"{label}: branch", branch, ctx.max_rows * width)
    what = kernel(
        "sigmoid_gate",
        variables={"SUBGROUPS": ctx.subgroups, "VALUE": ctx.values},
        constants={"WG": power_of_two(max(k, width) // 4, 32, 256), "K": k, "WIDTH": width},
    )
    buffers = {"current": ctx.state.step, "x": x, "weight": weight, "branch": branch}
    return [dispatch(what, buffers, Grid(rows_axis=0), label)]
