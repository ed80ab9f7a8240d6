"""Products with the experts that each row was routed to, without the host knowing which.

expert_each    y[r, s, :] = W[e] x[r, :]                   gate and up projections
expert_sum     y[r, :] = sum_s share W[e] x[r, s, :]       down projection

The experts of a layer are one matrix, their rows one after the other; where it exceeds the
binding limit it comes in parts, each with its own dispatch. A route reads its expert's weights by
itself, so this suits few rows best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, dispatch, flat_grid

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.formats import HALF
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.router_topk import ROUTE_WORDS
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import halves_of, need_rows, power_of_two


@dataclass(frozen=True)
class Routed:
    """Where each row goes.

    Attributes:
        routes: (u32 expert, f32 share) [rows, top_k].
        experts: Experts in a stacked matrix.
        top_k: Routes of a row.
    """

    routes: BufferSlice
    experts: int
    top_k: int


@dataclass(frozen=True)
class Shape:
    """Of each expert's matrix."""

    outputs: int
    inputs: int


def expert_shape(weight: GpuWeight, routed: Routed, label: str) -> Shape:
    """The shape of one expert in a stack [experts * N, K].

    Raises:
        FormatError: Sizes that do not suit, or single values stored by column.
    """
    need_rows(weight, label)
    need_multiple(f"{label}: all experts", weight.n, routed.experts)
    need_multiple(f"{label}: K", weight.k, 4)
    return Shape(weight.n // routed.experts, weight.k)


def expert_each(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    label: str,
) -> list[Dispatch]:
    """What each expert of a row makes of it.

    Args:
        ctx: Where it is lowered to.
        weight: [experts * N, K].
        routed: Where each row goes.
        x: [rows, K].
        y: [rows, top_k, N].
        label: What the layer is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    shape = expert_shape(weight, routed, label)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * shape.inputs)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * routed.top_k * shape.outputs)
    return _launches(ctx, "each", weight, routed, x, y, accumulate=False, label=label)


def expert_sum(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    accumulate: bool = False,
    label: str,
) -> list[Dispatch]:
    """The sum of a row's experts, each by its share.

    Args:
        ctx: Where it is lowered to.
        weight: [experts * N, K].
        routed: Where each row goes.
        x: [rows, top_k, K].
        y: [rows, N]; another buffer than x.
        accumulate: Add to y instead of replacing it.
        label: What the layer is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    shape = expert_shape(weight, routed, label)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * routed.top_k * shape.inputs)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * shape.outputs)
    return _launches(ctx, "sum", weight, routed, x, y, accumulate=accumulate, label=label)


def _launches(
    ctx: OpContext,
    mode: str,
    weight: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    accumulate: bool,
    label: str,
) -> list[Dispatch]:
    shape, name = expert_shape(weight, routed, label), weight.dtype.name.lower()
    need_floats(f"{label}: routes", routed.routes, ctx.max_rows * routed.top_k * ROUTE_WORDS)
    grid = flat_grid(-(-shape.outputs // 4), rows_axis=2)
    made = []
    for part in weight.parts:
        constants: dict[str, float | int | bool] = {
            "WG": power_of_two(halves_of(shape.inputs), 32, 128),
            "K": shape.inputs,
            "K_PADDED": shape.inputs % HALF != 0,
            "STRIDE": shape.outputs,
            "UNITS": halves_of(shape.inputs),
            "OUTPUTS": part.rows,
            "FIRST": part.first_row,
            "EXPERTS": routed.experts,
            "EXPERT_ROWS": weight.stride,
            "TOP_K": routed.top_k,
            **weight.places(part, 0),
        }
        if mode == "sum":
            constants["ACCUMULATE"] = accumulate or part.first_row > 0
        what = kernel(
            "gemv_row",
            variables={
                "EXPERTS": mode,
                "FORMATS": (weight.form,),
                "ROWS": 1,
                "Y": ctx.values,
                "SUBGROUPS": ctx.subgroups,
                "VALUE": ctx.values,
            },
            constants=constants,
            variant=f"experts.{mode}.{name}",
        )
        buffers = {
            "current": ctx.state.step,
            "routes": routed.routes,
            "x": x,
            "weight0": part.slice,
            "y": y,
        }
        whole = replace(grid, z=routed.top_k) if mode == "each" else grid
        made.append(dispatch(what, buffers, whole, label))
    return made
