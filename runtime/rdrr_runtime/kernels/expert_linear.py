"""Products with the experts that each row was routed to, without the host knowing which.

expert_each    y[r, s, :] = W[e] x[r, :]                   gate and up projections
expert_sum     y[r, :] = sum_s share W[e] x[r, s, :]       down projection

The experts of a layer are one matrix, their rows one after the other; where it exceeds the binding
limit it comes in parts, each with its own dispatch. A route reads its expert's weights by itself,
so this suits few rows best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.buffers import BufferSlice
from rdrr_runtime.kernels._context import OpContext, need_floats, need_multiple
from rdrr_runtime.kernels._kernel import Dispatch, dispatch, flat_grid, kernel
from rdrr_runtime.kernels._weights import power_of_two, row_padded, row_units
from rdrr_runtime.kernels.router_topk import ROUTE_WORDS
from rdrr_runtime.packing import GpuWeight


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


def check_stack(weight: GpuWeight, routed: Routed, label: str) -> int:
    """Outputs of each expert.

    Raises:
        FormatError: A matrix of another layout, or sizes that do not suit.
    """
    if weight.layout is not Layout.ROW:
        raise FormatError("experts are read by rows", where=label, found=weight.layout)
    need_multiple(f"{label}: K", weight.k, 4)
    need_multiple(f"{label}: rows of all experts", weight.n, routed.experts)
    return weight.n // routed.experts


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
        weight: [experts * N, K] by row.
        routed: Where each row goes.
        x: [rows, K].
        y: [rows, top_k, N].
        label: What the layer is.

    Raises:
        FormatError: A matrix of another layout, or sizes that do not suit.
    """
    ctx.need_values(f"{label}: x", x, ctx.max_rows * weight.k)
    outputs = ctx.max_rows * routed.top_k * (weight.n // routed.experts)
    ctx.need_values(f"{label}: y", y, outputs)
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
        weight: [experts * N, K] by row.
        routed: Where each row goes.
        x: [rows, top_k, K].
        y: [rows, N]; another buffer than x.
        accumulate: Add to y instead of replacing it.
        label: What the layer is.

    Raises:
        FormatError: A matrix of another layout, or sizes that do not suit.
    """
    ctx.need_values(f"{label}: x", x, ctx.max_rows * routed.top_k * weight.k)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * (weight.n // routed.experts))
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
    outputs, name = check_stack(weight, routed, label), weight.dtype.name.lower()
    need_floats(f"{label}: routes", routed.routes, ctx.max_rows * routed.top_k * ROUTE_WORDS)
    grid = flat_grid(-(-outputs // 4), rows_axis=2)
    made = []
    for part in weight.parts:
        constants: dict[str, float | int | bool] = {
            "WG": power_of_two(row_units(weight), 32, 128),
            "K": weight.k,
            "N": outputs,
            "UNITS": row_units(weight),
            "K_PADDED": row_padded(weight),
            "ROW_WORDS": weight.words_per_row,
            "OUTPUTS": part.rows,
            "FIRST": part.first_row,
            "EXPERTS": routed.experts,
            "TOP_K": routed.top_k,
        }
        if mode == "sum":
            constants["ACCUMULATE"] = accumulate or part.first_row > 0
        what = kernel(
            "expert_linear",
            variables={
                "MODE": mode,
                "WEIGHT": name,
                "SUBGROUPS": ctx.subgroups,
                "VALUE": ctx.values,
            },
            constants=constants,
            variant=f"{mode}.{name}",
        )
        buffers = {
            "current": ctx.state.step,
            "routes": routed.routes,
            "x": x,
            "weight": part.slice,
            "y": y,
        }
        shape = replace(grid, z=routed.top_k) if mode == "each" else grid
        made.append(dispatch(what, buffers, shape, label))
    return made
