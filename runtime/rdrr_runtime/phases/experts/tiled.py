"""Products of many token rows with their experts, tiled over the routes of each expert.

    y[r, s, :] = W[e] x[r, :], or W[e] x[r, s, :], where e is the expert of the s-th route of row r

A tile of 32 routes reads and unpacks the weights of its expert once; `expert_linear` does so for
each route. The kernels are those of `linear` in floating point and of `matmul_int8` in int8.
"""

from __future__ import annotations

from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.experts.routing import expert_outputs, groups_bytes
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.products.linear_records import (
    LinearRecord,
    MatmulInt8,
    MatmulTiled,
    float_fields,
)
from rdrr_runtime.phases.products.matmul_int8 import TINY, steps_of
from rdrr_runtime.phases.products.quantize_rows import QuantizedRows
from rdrr_runtime.phases.routes import Routed
from rdrr_runtime.phases.weights.binding import BoundWeights, bind_parts
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

MIN_ROWS = 32
"""Fewest token rows of a pass for which tiles over each expert's routes are used."""


def refusal(ctx: OpContext) -> str | None:
    """Return why a pass cannot tile the routes of each expert, or None if it can."""
    if ctx.max_rows < MIN_ROWS:
        return f"tiles of experts need {MIN_ROWS} token rows, and the pass has {ctx.max_rows}"
    return None


def expert_tiled(
    ctx: OpContext,
    weight: GpuWeight,
    routed: Routed,
    groups: BufferSlice,
    x: BufferSlice | QuantizedRows,
    y: BufferSlice,
    *,
    by_route: bool,
    label: str,
) -> list[Phase]:
    """Multiply each expert by the rows that are routed to it.

    Args:
        ctx: Lowering context.
        weight: [experts * N, K]; if x is in int8, `weights_refusal` must return None for it.
        routed: Routes of the pass.
        groups: Output of `expert_groups`.
        x: [rows, K], or [rows, top_k, K] with `by_route`.
        y: [rows, top_k, N]; not the same buffer as x.
        by_route: Whether x has a vector for each route.
        label: Name of the layer, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    outputs = expert_outputs(weight, routed, label)
    routes = ctx.max_rows * routed.top_k
    need_floats(f"{label}: groups", groups, groups_bytes(ctx, routed.experts) // 4)
    ctx.need_values(f"{label}: y", y, routes * outputs)
    operands = {"groups": groups, "y": y}
    if isinstance(x, QuantizedRows):
        operands |= {"x": x.q, "x_scales": x.scales}
    else:
        ctx.need_values(f"{label}: x", x, (routes if by_route else ctx.max_rows) * weight.k)
        operands["x"] = x
    shared = {
        "experts": "route" if by_route else "row",
        "variant": f"experts.{weight.dtype.name.lower()}",
        "n": outputs,
        "top_k": routed.top_k,
        "max_rows": ctx.max_rows,
    }
    work = Work(-(-outputs // TINY.outputs) * routed.experts, TINY.rows)
    phases = []
    for bound in bind_parts(weight):
        record = _record(ctx, bound, x, shared)
        phases.append(Phase(record, {**operands, **bound.buffers}, work, label))
    return phases


def _record(
    ctx: OpContext, bound: BoundWeights, x: BufferSlice | QuantizedRows, shared: dict[str, Any]
) -> LinearRecord:
    weight, part = bound.weights[0], bound.parts[0]
    if isinstance(x, QuantizedRows):
        sizes = {"first": 0, "outputs": shared["n"], "rows": x.rows, "steps": steps_of(weight.k)}
        return MatmulInt8(**shared, **sizes, **bound.fields, **TINY.fields)
    return MatmulTiled(
        **shared,
        **float_fields(ctx, bound),
        outputs=part.rows,
        expert_rows=weight.stride,
        micro=TINY.rows // 8,
        tile_n=TINY.outputs,
        skips=ctx.software,
    )
