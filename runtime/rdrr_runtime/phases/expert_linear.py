"""Products of a small batch with the experts that each row was routed to.

The host does not know which experts these are: a route reads its expert's weights by itself. The
experts of a layer are one matrix, their rows one after the other; where it exceeds the binding
limit it comes in parts, each with its own phase.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.bound_weights import bind_parts
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.formats import HALF
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.linear_records import GemvRow, float_fields
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.routing import Routed, expert_outputs, need_routes
from rdrr_runtime.phases.weight_checks import half_units, power_of_two


def expert_linear(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    by_route: bool,
    accumulate: bool = False,
    label: str,
) -> list[Phase]:
    """Multiply rows by their experts.

        each row        y[r, s, :] = W[e] x[r, :]
        with by_route   y[r, :] = sum_s w W[e] x[r, s, :] (+ y), w the weight of row r's s-th route

    Args:
        ctx: Where it is lowered to.
        weight: [experts * N, K].
        routed: Where each row goes.
        x: [rows, K], or [rows, top_k, K] with `by_route`.
        y: [rows, top_k, N], or [rows, N] with `by_route`; another buffer than x.
        by_route: x has a row for each route, and the results of a row's experts are summed.
        accumulate: Add the sum to y instead of replacing it.
        label: What the layer is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    need_routes(ctx, routed, label)
    outputs = expert_outputs(weight, routed, label)
    read, left = (routed.top_k, 1) if by_route else (1, routed.top_k)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * read * weight.k)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * left * outputs)
    experts, made = "sum" if by_route else "each", []
    for bound in bind_parts(weight):
        part = bound.parts[0]
        record = GemvRow(
            threads=power_of_two(half_units(weight.k), 32, 128),
            variant=f"experts.{experts}.{bound.types}",
            experts=experts,
            rows=1,
            subgroups=ctx.subgroups,
            k_padded=weight.k % HALF != 0,
            n=outputs,
            outputs=part.rows,
            accumulate=by_route and (accumulate or part.first_row > 0),
            expert_count=routed.experts,
            expert_rows=weight.stride,
            top_k=routed.top_k,
            **float_fields(ctx, bound),
        )
        buffers = {"x": x, "y": y, "routes": routed.routes, **bound.buffers}
        made.append(Phase(record, buffers, Work(-(-outputs // 4) * left, rows=1), label))
    return made
