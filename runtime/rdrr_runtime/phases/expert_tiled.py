"""Products of many token rows with the experts they were routed to, each expert's rows together.

expert_groups     which routes each expert has
expert_tiled      y[r, s, :] = W[e] x[r, :], or W[e] x[r, s, :]
expert_combine    y[r, :] = sum_s share inner[r, s, :]

A tile of 32 routes reads and dequantizes an expert's weights once, where `expert_linear` does so
for each route.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.expert_linear import Routed, expert_shape
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import halves_of

TILE_ROWS, TILE_OUTPUTS = 32, 64
MIN_ROWS = 32
"""Token rows of a pass from which experts get tiles of their own."""


def groups_bytes(ctx: OpContext, experts: int) -> int:
    """Bytes of the groups of a pass."""
    return 4 * experts * (1 + ctx.max_rows)


def expert_groups(
    ctx: OpContext, routed: Routed, groups: BufferSlice, *, label: str
) -> list[Dispatch]:
    """The routes of each expert, their number first: u32 [experts, 1 + max_rows].

    Raises:
        FormatError: A buffer too small.
    """
    need_floats(f"{label}: groups", groups, groups_bytes(ctx, routed.experts) // 4)
    what = kernel("expert_groups", constants={"TOP_K": routed.top_k, "MAX_ROWS": ctx.max_rows})
    buffers = {"current": ctx.state.step, "routes": routed.routes, "groups": groups}
    return [dispatch(what, buffers, Grid(routed.experts), label)]


def expert_tiled(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    groups: BufferSlice,
    x: BufferSlice,
    y: BufferSlice,
    *,
    by_route: bool,
    label: str,
) -> list[Dispatch]:
    """What each expert makes of the rows it has.

    Args:
        ctx: Where it is lowered to.
        weight: [experts * N, K].
        routed: Where each row goes.
        groups: As `expert_groups` leaves it.
        x: [rows, K], or [rows, top_k, K] with `by_route`.
        y: [rows, top_k, N]; another buffer than x.
        by_route: x has a row for each route.
        label: What the layer is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    outputs = expert_shape(weight, routed, label).outputs
    routes = ctx.max_rows * routed.top_k
    ctx.need_values(f"{label}: x", x, (routes if by_route else ctx.max_rows) * weight.k)
    ctx.need_values(f"{label}: y", y, routes * outputs)
    name = weight.dtype.name.lower()
    grid = Grid(-(-outputs // TILE_OUTPUTS), routed.experts, 1, 2, TILE_ROWS)
    made = []
    for part in weight.parts:
        what = kernel(
            "matmul_tiled",
            variables={
                "FORMATS": (weight.form,),
                "EXPERTS": "route" if by_route else "row",
                "MICRO": TILE_ROWS // 8,
                "TILE_N": TILE_OUTPUTS,
                "BIAS": False,
                "VALUE": ctx.values,
                "Y": ctx.values,
            },
            constants={
                "K": weight.k,
                "N": outputs,
                "UNITS": halves_of(weight.k),
                "EXPERT_ROWS": weight.stride,
                "PART": part.rows,
                "FIRST": part.first_row,
                "TOP_K": routed.top_k,
                "MAX_ROWS": ctx.max_rows,
                **weight.places(part, 0),
            },
            variant=f"experts.{name}",
            trusted=True,
        )
        buffers = {
            "current": ctx.state.step,
            "groups": groups,
            "x": x,
            "weight0": part.slice,
            "y": y,
        }
        made.append(dispatch(what, buffers, grid, label))
    return made


def expert_combine(
    ctx: OpContext,
    routed: Routed,
    inner: BufferSlice,
    y: BufferSlice,
    *,
    width: int,
    accumulate: bool = False,
    label: str,
) -> list[Dispatch]:
    """The sum of what a row's experts made, each by its share.

    Args:
        ctx: Where it is lowered to.
        routed: Where each row goes.
        inner: [rows, top_k, width].
        y: [rows, width]; another buffer than inner.
        width: Elements of a row, a multiple of 4.
        accumulate: Add to y instead of replacing it.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: inner", inner, ctx.max_rows * routed.top_k * width)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * width)
    what = kernel(
        "expert_combine",
        variables={"VALUE": ctx.values},
        constants={"N": width, "TOP_K": routed.top_k, "ACCUMULATE": accumulate},
    )
    buffers = {"current": ctx.state.step, "routes": routed.routes, "inner": inner, "y": y}
    return [dispatch(what, buffers, Grid(-(-width // 256), 1, 1, 1), label)]
