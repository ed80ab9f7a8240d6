"""Products of many token rows with the experts they were routed to, each expert's rows together.

    y[r, s, :] = W[e] x[r, :], or W[e] x[r, s, :]

A tile of 32 routes reads and unpacks an expert's weights once, where `expert_linear` does so for
each route. Products are those of `linear` in f32 and of `matmul_int8` in int8.
"""

from __future__ import annotations

from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.bound_weights import BoundWeights, bind_parts
from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.linear_records import LinearRecord, MatmulInt8, MatmulTiled, float_fields
from rdrr_runtime.phases.matmul_int8 import TINY, steps_of
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.quantize_rows import QuantizedRows
from rdrr_runtime.phases.routing import Routed, expert_outputs, groups_bytes

MIN_ROWS = 32
"""Token rows of a pass from which experts get tiles of their own."""


def refusal(ctx: OpContext) -> str | None:
    """Return why the routes of an expert get no tiles of their own; None if they do."""
    if ctx.max_rows < MIN_ROWS:
        return f"tiles of experts begin at {MIN_ROWS} token rows, and the pass has {ctx.max_rows}"
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
        ctx: Where it is lowered to.
        weight: [experts * N, K]; where x is in int8, `weights_refusal` must not refuse it.
        routed: Where each row goes.
        groups: As `expert_groups` leaves it.
        x: [rows, K], or [rows, top_k, K] with `by_route`.
        y: [rows, top_k, N]; another buffer than x.
        by_route: x has a row for each route.
        label: What the layer is.

    Raises:
        FormatError: Sizes that do not suit.
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
    same = {
        "experts": "route" if by_route else "row",
        "variant": f"experts.{weight.dtype.name.lower()}",
        "n": outputs,
        "top_k": routed.top_k,
        "max_rows": ctx.max_rows,
    }
    work = Work(-(-outputs // TINY.outputs) * routed.experts, TINY.rows)
    made = []
    for bound in bind_parts(weight):
        record = _record(ctx, bound, x, same)
        made.append(Phase(record, {**operands, **bound.buffers}, work, label))
    return made


def _record(
    ctx: OpContext, bound: BoundWeights, x: BufferSlice | QuantizedRows, same: dict[str, Any]
) -> LinearRecord:
    weight, part = bound.weights[0], bound.parts[0]
    if isinstance(x, QuantizedRows):
        sizes = {"first": 0, "outputs": same["n"], "rows": x.rows, "steps": steps_of(weight.k)}
        return MatmulInt8(**same, **sizes, **bound.fields, **TINY.fields)
    return MatmulTiled(
        **same,
        **float_fields(ctx, bound),
        outputs=part.rows,
        expert_rows=weight.stride,
        micro=TINY.rows // 8,
        tile_n=TINY.outputs,
    )
