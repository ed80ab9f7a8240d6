"""Products of a small batch with the experts that each row was routed to.

expert_each    y[r, s, :] = W[e] x[r, :]                gate and up projections
expert_sum     y[r, :] = sum_s w W[e] x[r, s, :]        down projection

w is the weight of row r's s-th route. The host does not know which experts these are: a route reads
its expert's weights by itself. The experts of a layer are one matrix, their rows one after the
other; where it exceeds the binding limit it comes in parts, each with its own phase.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.formats import HALF
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.linear_records import GemvRow
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.routing import Routed, expert_outputs, need_routes
from rdrr_runtime.phases.weight_units import halves_of, power_of_two


@dataclass(frozen=True, kw_only=True)
class ExpertGemvRow(GemvRow):
    """Parameters of gemv_row.wgsl with experts.

    Attributes:
        expert_count: Experts in the matrix.
        expert_rows: Rows from one expert to the next.
        top_k: Routes of a row.
    """

    expert_count: int
    expert_rows: int
    top_k: int


def expert_each(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    label: str,
) -> list[Phase]:
    """Multiply each row by each of its experts.

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
    outputs = expert_outputs(weight, routed, label)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * weight.k)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * routed.top_k * outputs)
    return _phases(ctx, "each", weight, routed, x, y, accumulate=False, label=label)


def expert_sum(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    accumulate: bool = False,
    label: str,
) -> list[Phase]:
    """Sum the results of a row's experts, each times its routing weight.

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
    outputs = expert_outputs(weight, routed, label)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * routed.top_k * weight.k)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * outputs)
    return _phases(ctx, "sum", weight, routed, x, y, accumulate=accumulate, label=label)


def _phases(
    ctx: OpContext,
    experts: str,
    weight: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    accumulate: bool,
    label: str,
) -> list[Phase]:
    need_routes(ctx, routed, label)
    outputs = expert_outputs(weight, routed, label)
    items = -(-outputs // 4) * (routed.top_k if experts == "each" else 1)
    made = []
    for part in weight.parts:
        record = ExpertGemvRow(
            threads=power_of_two(halves_of(weight.k), 32, 128),
            variant=f"experts.{experts}.{weight.dtype.name.lower()}",
            formats=(weight.form,),
            experts=experts,
            value=ctx.values,
            y=ctx.values,
            rows=1,
            subgroups=ctx.subgroups,
            n=outputs,
            k=weight.k,
            units=halves_of(weight.k),
            k_padded=weight.k % HALF != 0,
            first=part.first_row,
            outputs=part.rows,
            accumulate=experts == "sum" and (accumulate or part.first_row > 0),
            expert_count=routed.experts,
            expert_rows=weight.stride,
            top_k=routed.top_k,
            planes=(weight.places(part),),
        )
        buffers = {"x": x, "weight0": part.slice, "y": y, "routes": routed.routes}
        made.append(Phase(record, buffers, Work(items, rows=1), label))
    return made
