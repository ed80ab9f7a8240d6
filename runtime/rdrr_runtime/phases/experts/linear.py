"""Products of a small batch of token rows with the experts that each row is routed to.

The host does not know which experts are selected; the kernel reads the expert of each route from
the routes and then its weights. The experts of a layer are stacked in one matrix. If the matrix
exceeds the binding limit it has several parts, each with its own phase.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, power_of_two
from rdrr_runtime.phases.experts.routing import expert_outputs
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.products.linear_records import GemvRow, float_fields
from rdrr_runtime.phases.routes import Routed, need_routes
from rdrr_runtime.phases.weights.binding import bind_parts
from rdrr_runtime.phases.weights.checks import half_units
from rdrr_runtime.phases.weights.formats import HALF
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


def expert_linear(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    by_route: bool,
    accumulate: bool = False,
    bias: BufferSlice | None = None,
    label: str,
) -> list[Phase]:
    """Multiply rows by their experts.

        by default       y[r, s, :] = W[e] x[r, :]
        with `by_route`  y[r, :] = sum_s w (W[e] x[r, s, :] (+ b[e])) (+ y)

    e is the expert of the s-th route of row r, and w is the routing weight.

    Args:
        ctx: Lowering context.
        weight: [experts * N, K].
        routed: Routes of the pass.
        x: [rows, K], or [rows, top_k, K] with `by_route`.
        y: [rows, top_k, N], or [rows, N] with `by_route`; not the same buffer as x.
        by_route: Whether x has a vector for each route, and the results of a row are summed.
        accumulate: Add the sum to y instead of replacing it.
        bias: With `by_route`: f32 [experts, N], or None.
        label: Name of the layer, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    need_routes(ctx, routed, label)
    outputs = expert_outputs(weight, routed, label)
    x_per_row, y_per_row = (routed.top_k, 1) if by_route else (1, routed.top_k)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * x_per_row * weight.k)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * y_per_row * outputs)
    experts, phases = "sum" if by_route else "each", []
    for bound in bind_parts(weight):
        part = bound.parts[0]
        record = GemvRow(
            threads=power_of_two(half_units(weight.k), 32, 128),
            variant=f"experts.{experts}.{bound.types}",
            experts=experts,
            bias=bias is not None,
            rows=1,
            subgroups=ctx.subgroups,
            k_padded=weight.k % HALF != 0,
            n=outputs,
            outputs=part.rows,
            accumulate=by_route and (accumulate or part.first_row > 0),
            expert_count=routed.experts,
            expert_rows=weight.stride,
            top_k=routed.top_k,
            scaled=routed.scales_inputs,
            **float_fields(ctx, bound),
        )
        buffers = {"x": x, "y": y, "routes": routed.routes, **bound.buffers}
        if bias is not None:
            need_floats(f"{label}: bias", bias, routed.experts * outputs)
            buffers["bias"] = bias
        phases.append(Phase(record, buffers, Work(-(-outputs // 4) * y_per_row, rows=1), label))
    return phases
