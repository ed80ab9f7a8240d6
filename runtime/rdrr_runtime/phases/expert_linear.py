"""Products with the experts that each row was routed to, without the host knowing which.

expert_each    y[r, s, :] = W[e] x[r, :]                   gate and up projections
expert_sum     y[r, :] = sum_s share W[e] x[r, s, :]       down projection

The experts of a layer are one matrix, their stored rows one after the other; where it exceeds the
binding limit it comes in parts, each with its own dispatch. A route reads its expert's weights by
itself, so this suits few rows best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, dispatch, flat_grid
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.packing import GpuWeight, Part
from rdrr_runtime.phases.router_topk import ROUTE_WORDS
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import power_of_two, row_padded, row_units

UNITS_PER_GROUP = 2  # two lanes read 32 bytes of one stored row, a whole memory sector


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
    """The shape of one expert in a stack: of rows [experts * N, K], of columns [N, experts * K].

    Raises:
        FormatError: A matrix of another layout, or sizes that do not suit.
    """
    if weight.layout is Layout.FLAT:
        raise FormatError(
            "experts are read by rows or columns", where=label, found=str(weight.layout)
        )
    by_row = weight.layout is Layout.ROW
    need_multiple(f"{label}: all experts", weight.n if by_row else weight.k, routed.experts)
    if by_row:
        shape = Shape(weight.n // routed.experts, weight.k)
    else:
        shape = Shape(weight.n, weight.k // routed.experts)
    need_multiple(f"{label}: K", shape.inputs, 4)
    return shape


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
        weight: [experts * N, K] by row, or [N, experts * K] by column.
        routed: Where each row goes.
        x: [rows, K].
        y: [rows, top_k, N].
        label: What the layer is.

    Raises:
        FormatError: A matrix of another layout, or sizes that do not suit.
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
        weight: [experts * N, K] by row, or [N, experts * K] by column.
        routed: Where each row goes.
        x: [rows, top_k, K].
        y: [rows, N]; another buffer than x.
        accumulate: Add to y instead of replacing it.
        label: What the layer is.

    Raises:
        FormatError: A matrix of another layout, or sizes that do not suit.
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
    by_row = weight.layout is Layout.ROW
    groups = -(-shape.outputs // 4) if by_row else -(-row_units(weight) // UNITS_PER_GROUP)
    grid = flat_grid(groups, rows_axis=2)
    made = []
    for part in weight.parts:
        constants: dict[str, float | int | bool] = {
            "K": shape.inputs,
            "N": shape.outputs,
            "UNITS": row_units(weight),
            "ROW_WORDS": weight.words_per_row,
            "FIRST": part.first_row,
            "EXPERTS": routed.experts,
            "TOP_K": routed.top_k,
            **(_by_row(weight, part) if by_row else _by_column(part)),
        }
        if mode == "sum" or not by_row:
            constants["ACCUMULATE"] = accumulate or part.first_row > 0
        what = kernel(
            "expert_linear" if by_row else "expert_column",
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
        whole = replace(grid, z=routed.top_k) if mode == "each" else grid
        made.append(dispatch(what, buffers, whole, label))
    return made


def _by_row(weight: GpuWeight, part: Part) -> dict[str, float | int | bool]:
    return {
        "WG": power_of_two(row_units(weight), 32, 128),
        "K_PADDED": row_padded(weight),
        "OUTPUTS": part.rows,
    }


def _by_column(part: Part) -> dict[str, float | int | bool]:
    splits = power_of_two(part.rows, 1, 64)
    return {"UNITS_PER_GROUP": UNITS_PER_GROUP, "SPLITS": splits, "INPUTS": part.rows}
