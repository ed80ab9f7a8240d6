"""Products with the experts that rows were routed to, in int8.

expert_gate     y[r, s, :] = act(W_gate[e] x[r, :]) W_up[e] x[r, :]
expert_down     y[r, :] = sum_s share W[e] x[r, s, :]
expert_rows     y[r, s, :] = W[e] x[r, :], or W[e] x[r, s, :], for many rows

What `expert_linear` and `expert_tiled` do in f32, for experts of blocks along K in one part. In the
first two a route reads its expert's weights by itself, and x comes from `int8_rows`; in the last
the rows of an expert share its weights in a tile of `matmul_int8`, and x comes from
`quantize_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch, flat_grid

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.expert_linear import Routed, expert_shape
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.int8_rows import int8_rows_bytes, units_of
from rdrr_runtime.phases.matmul_int8 import TINY, TYPES
from rdrr_runtime.phases.quantize_rows import Int8Rows
from rdrr_runtime.phases.router_topk import ROUTE_WORDS
from rdrr_runtime.phases.shaders import kernel

WORKGROUP = 128
TEAM = 32
"""Threads that share an output; fast where it is the size of a subgroup."""


def suits(ctx: OpContext, weights: Sequence[GpuWeight]) -> bool:
    """Whether the kernel reads these stacks of experts."""
    stored = all(
        not one.by_column and len(one.parts) == 1 and one.dtype.name in TYPES for one in weights
    )
    return stored and ctx.values == "f32"


def expert_gate(
    ctx: OpContext,
    gates: GpuWeight,
    ups: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    activation: str,
    label: str,
) -> list[Dispatch]:
    """Gate, up and activation of each route; `suits` must hold.

    Args:
        ctx: Where it is lowered to.
        gates: [experts * N, K], blocks along K.
        ups: The same.
        routed: Where each row goes.
        x: [rows, K] as `int8_rows` leaves it.
        y: f32 [rows, top_k, N].
        activation: `silu` or `gelu_tanh`.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    shape = expert_shape(gates, routed, label)
    need_floats(f"{label}: x", x, int8_rows_bytes(ctx.max_rows, shape.inputs) // 4)
    need_floats(f"{label}: y", y, ctx.max_rows * routed.top_k * shape.outputs)
    grid = Grid(z=routed.top_k, rows_axis=2)
    return [_launch(ctx, (gates, ups), routed, x, y, grid, label, activation=activation)]


def expert_down(
    ctx: OpContext,
    downs: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    accumulate: bool = False,
    label: str,
) -> list[Dispatch]:
    """The sum of a row's experts, each by its share; `suits` must hold.

    Args:
        ctx: Where it is lowered to.
        downs: [experts * N, K], blocks along K.
        routed: Where each row goes.
        x: [rows, top_k, K] as `int8_rows` leaves it.
        y: f32 [rows, N].
        accumulate: Add to y instead of replacing it.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    shape = expert_shape(downs, routed, label)
    need_floats(f"{label}: x", x, int8_rows_bytes(ctx.max_rows * routed.top_k, shape.inputs) // 4)
    need_floats(f"{label}: y", y, ctx.max_rows * shape.outputs)
    grid = Grid(rows_axis=2)
    return [_launch(ctx, (downs,), routed, x, y, grid, label, accumulate=accumulate)]


def expert_rows(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    groups: BufferSlice,
    x: Int8Rows,
    y: BufferSlice,
    *,
    by_route: bool,
    label: str,
) -> list[Dispatch]:
    """What each expert makes of the rows it has; `suits` must hold.

    Args:
        ctx: Where it is lowered to.
        weight: [experts * N, K], blocks along K.
        routed: Where each row goes.
        groups: As `expert_groups` leaves it.
        x: A row for each token row, or for each route with `by_route`.
        y: f32 [rows, top_k, N].
        by_route: x has a row for each route.
        label: What the layer is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    shape = expert_shape(weight, routed, label)
    need_floats(f"{label}: y", y, ctx.max_rows * routed.top_k * shape.outputs)
    name = weight.dtype.name.lower()
    what = kernel(
        "matmul_int8",
        variables={
            "FORMATS": (weight.form,),
            "BIAS": False,
            "TILE_M": TINY.rows,
            "TILE_N": TINY.outputs,
            "TM": TINY.tm,
            "TN": TINY.tn,
            "THREADS": TINY.threads,
            "EXPERTS": "route" if by_route else "row",
        },
        constants={
            "N": shape.outputs,
            "ROWS": x.rows,
            "STEPS": -(-shape.inputs // 64),
            "PART": shape.outputs,
            "EXPERT_ROWS": shape.outputs,
            **weight.places(weight.parts[0], 0),
            "TOP_K": routed.top_k,
            "MAX_ROWS": ctx.max_rows,
        },
        variant=f"experts.{name}",
        trusted=True,
    )
    buffers = {
        "current": ctx.state.step,
        "x": x.q,
        "x_scales": x.scales,
        "weight0": weight.parts[0].slice,
        "y": y,
        "groups": groups,
    }
    grid = Grid(-(-shape.outputs // TINY.outputs), routed.experts, 1, 2, TINY.rows)
    return [dispatch(what, buffers, grid, label)]


def _launch(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    grid: Grid,
    label: str,
    *,
    activation: str = "",
    accumulate: bool = False,
) -> Dispatch:
    shape = expert_shape(weights[0], routed, label)
    need_floats(f"{label}: routes", routed.routes, ctx.max_rows * routed.top_k * ROUTE_WORDS)
    types = ",".join(one.dtype.name.lower() for one in weights)
    threads = min(WORKGROUP, ctx.max_threads)
    buffers = {"current": ctx.state.step, "routes": routed.routes, "x": x, "y": y}
    constants: dict[str, float | int | bool] = {
        "WG": threads,
        "T": TEAM,
        "N": shape.outputs,
        "UNITS": units_of(shape.inputs),
        "EXPERTS": routed.experts,
        "TOP_K": routed.top_k,
        "ACCUMULATE": accumulate,
    }
    for index, one in enumerate(weights):
        constants |= one.places(one.parts[0], index)
        buffers[f"weight{index}"] = one.parts[0].slice
    what = kernel(
        "expert_int8",
        variables={
            "FORMATS": tuple(one.form for one in weights),
            "GATE": bool(activation),
            "ACT": activation,
            "OUTPUTS": 1,
            "SUBGROUPS": ctx.subgroups,
        },
        constants=constants,
        variant=f"{'gate' if activation else 'down'}.{types}",
        trusted=True,
    )
    over = flat_grid(-(-shape.outputs // (threads // TEAM)))
    whole = Grid(over.x, over.y, grid.z, grid.rows_axis)
    return dispatch(what, buffers, whole, label)
