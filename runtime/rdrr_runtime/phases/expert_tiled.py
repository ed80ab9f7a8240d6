"""Products of many token rows with the experts they were routed to, each expert's rows together.

    y[r, s, :] = W[e] x[r, :], or W[e] x[r, s, :]

A tile of 32 routes reads and unpacks an expert's weights once, where `expert_linear` does so for
each route. Products are those of `linear` in f32 and of `matmul_int8` in int8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.gpu_weight import GpuWeight, Part
from rdrr_runtime.phases.linear_records import MatmulInt8, MatmulTiled
from rdrr_runtime.phases.matmul_int8 import TINY
from rdrr_runtime.phases.phase import Phase, Record, Work
from rdrr_runtime.phases.quantize_rows import Int8Rows
from rdrr_runtime.phases.routing import Routed, expert_outputs, groups_bytes
from rdrr_runtime.phases.weight_units import halves_of

MIN_ROWS = 32
"""Token rows of a pass from which experts get tiles of their own."""


@dataclass(frozen=True, kw_only=True)
class ExpertMatmulTiled(MatmulTiled):
    """Parameters of matmul_tiled.wgsl with experts.

    Attributes:
        expert_rows: Rows from one expert to the next.
        top_k: Routes of a row.
        max_rows: Most token rows of a pass.
    """

    expert_rows: int
    top_k: int
    max_rows: int


@dataclass(frozen=True, kw_only=True)
class ExpertMatmulInt8(MatmulInt8):
    """Parameters of matmul_int8.wgsl with experts.

    Attributes:
        top_k: Routes of a row.
        max_rows: Most token rows of a pass.
    """

    top_k: int
    max_rows: int


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
    x: BufferSlice | Int8Rows,
    y: BufferSlice,
    *,
    by_route: bool,
    label: str,
) -> list[Phase]:
    """Multiply each expert by the rows that are routed to it.

    Args:
        ctx: Where it is lowered to.
        weight: [experts * N, K]; where x is in int8, there must be no `expert_int8.refusal`.
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
    if isinstance(x, Int8Rows):
        operands |= {"x": x.q, "x_scales": x.scales}
    else:
        ctx.need_values(f"{label}: x", x, (routes if by_route else ctx.max_rows) * weight.k)
        operands["x"] = x
    work = Work(-(-outputs // TINY.outputs) * routed.experts, TINY.rows)
    experts = "route" if by_route else "row"
    return [
        Phase(
            _record(ctx, weight, part, routed, x, experts),
            {**operands, "weight0": part.slice},
            work,
            label,
        )
        for part in weight.parts
    ]


def _record(
    ctx: OpContext,
    weight: GpuWeight,
    part: Part,
    routed: Routed,
    x: BufferSlice | Int8Rows,
    experts: str,
) -> Record:
    outputs = weight.n // routed.experts
    same: dict[str, Any] = {
        "variant": f"experts.{weight.dtype.name.lower()}",
        "formats": (weight.form,),
        "planes": (weight.places(part),),
        "experts": experts,
        "n": outputs,
        "top_k": routed.top_k,
        "max_rows": ctx.max_rows,
    }
    if isinstance(x, Int8Rows):
        same |= {"first": 0, "outputs": outputs, **TINY.fields}
        return ExpertMatmulInt8(**same, rows=x.rows, steps=-(-weight.k // 64))
    return ExpertMatmulTiled(
        **same,
        first=part.first_row,
        outputs=part.rows,
        expert_rows=weight.stride,
        k=weight.k,
        units=halves_of(weight.k),
        value=ctx.values,
        y=ctx.values,
        micro=TINY.rows // 8,
        tile_n=TINY.outputs,
    )
