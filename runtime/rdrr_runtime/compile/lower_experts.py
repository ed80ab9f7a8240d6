"""Mixtures of experts as dispatches: the router, the experts it chose, and the shared one's gate.

The choice stays on the GPU: kernels read the numbers of the experts from the buffer of routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import Experts, Router, SigmoidGate

from rdrr_runtime.phases.expert_int8 import expert_down, expert_gate, expert_rows, suits
from rdrr_runtime.phases.expert_linear import Routed, expert_each, expert_sum
from rdrr_runtime.phases.expert_tiled import (
    MIN_ROWS,
    expert_combine,
    expert_groups,
    expert_tiled,
    groups_bytes,
)
from rdrr_runtime.phases.gated_activation import gated_activation
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.int8_rows import int8_rows, int8_rows_bytes
from rdrr_runtime.phases.quantize_rows import Int8Rows, int8_sizes, padded_rows, quantize_rows
from rdrr_runtime.phases.router_topk import ROUTE_WORDS, router_topk
from rdrr_runtime.phases.sigmoid_gate import sigmoid_gate

if TYPE_CHECKING:
    from rdrr_runtime.compile.lower import Lowering


def lower_router(low: Lowering, op: Router) -> Routed:
    """The routes of all rows."""
    rows, experts = low.ctx.max_rows, op.experts
    logits = low.workspace.named(f"router.{rows}", 4 * rows * experts)
    routes = low.workspace.named(f"routes.{rows}", 4 * ROUTE_WORDS * rows * op.top_k)
    matrix = low.weights.matrices[op.weight.name]
    low.matmul(matrix, low.values.get(op.x), logits, logits=True, label=op.out)
    low.emit(
        router_topk(
            low.ctx,
            logits,
            routes,
            experts=experts,
            top_k=op.top_k,
            normalize=op.normalize,
            label=op.out,
        )
    )
    low.values.read(op.x)
    return Routed(routes, experts, op.top_k)


def lower_experts(
    low: Lowering, op: Experts, routed: Routed, out: BufferSlice, *, accumulate: bool
) -> None:
    """The sum of the routed experts into `out`, or added to what it holds."""
    inner = routed.top_k * op.width
    gates, ups, downs = (low.weights.stack(group) for group in (op.gates, op.ups, op.downs))
    if low.select.matmul((gates, ups, downs)).int8 and suits(low.ctx, (gates, ups, downs)):
        lower = _lower_int8_tiled if _is_tiled(low) else _lower_int8
        lower(low, op, routed, (gates, ups, downs), out, accumulate=accumulate)
        return
    x, act = low.values.get(op.x), _scratch(low, "act", inner)
    gate, up = _scratch(low, "gate", inner), _scratch(low, "up", inner)
    groups = None
    if _is_tiled(low):
        groups = _lower_groups(low, op, routed)
    for weight, y, name in ((gates, gate, "gate"), (ups, up, "up")):
        ctx, label = low.select.matmul((weight,)).context(low.ctx), f"{op.out}.{name}"
        if groups is None:
            made = expert_each(ctx, weight, routed, x, y, label=label)
        else:
            made = expert_tiled(ctx, weight, routed, groups, x, y, by_route=False, label=label)
        low.emit(made, low.select.why_experts(ctx, weight, tiled=_is_tiled(low)))
    low.emit(
        gated_activation(
            low.ctx, gate, up, act, width=inner, activation=op.activation, label=f"{op.out}.act"
        )
    )
    ctx = low.select.matmul((downs,)).context(low.ctx)
    why = low.select.why_experts(ctx, downs, tiled=_is_tiled(low))
    if groups is None:
        made = expert_sum(ctx, downs, routed, act, out, accumulate=accumulate, label=op.out)
        low.emit(made, why)
        return
    width = op.downs[0].shape[0]
    parts, label = _scratch(low, "parts", routed.top_k * width), f"{op.out}.down"
    made = expert_tiled(ctx, downs, routed, groups, act, parts, by_route=True, label=label)
    low.emit(made, why)
    summed = expert_combine(
        low.ctx, routed, parts, out, width=width, accumulate=accumulate, label=op.out
    )
    low.emit(summed)


def _lower_int8(
    low: Lowering,
    op: Experts,
    routed: Routed,
    weights: tuple[GpuWeight, GpuWeight, GpuWeight],
    out: BufferSlice,
    *,
    accumulate: bool,
) -> None:
    gates, ups, downs = weights
    ctx, act = low.ctx, _scratch(low, "act", routed.top_k * op.width)
    wide = int8_rows_bytes(ctx.max_rows, gates.k)
    narrow = int8_rows_bytes(ctx.max_rows * routed.top_k, downs.k)
    x = low.workspace.named(f"experts.int8.{ctx.max_rows}", wide)
    inner = low.workspace.named(f"experts.act.int8.{ctx.max_rows}", narrow)
    why, label = low.select.why_experts(ctx, gates, tiled=False, int8=True), f"{op.out}.act"
    low.emit(int8_rows(ctx, low.values.get(op.x), x, k=gates.k, label=f"{op.x}.int8"), why)
    made = expert_gate(ctx, gates, ups, routed, x, act, activation=op.activation, label=label)
    low.emit(made, why)
    why = low.select.why_experts(ctx, downs, tiled=False, int8=True)
    made = int8_rows(ctx, act, inner, k=downs.k, per_row=routed.top_k, label=f"{label}.int8")
    low.emit(made, why)
    low.emit(expert_down(ctx, downs, routed, inner, out, accumulate=accumulate, label=op.out), why)


def _lower_int8_tiled(
    low: Lowering,
    op: Experts,
    routed: Routed,
    weights: tuple[GpuWeight, GpuWeight, GpuWeight],
    out: BufferSlice,
    *,
    accumulate: bool,
) -> None:
    gates, ups, downs = weights
    ctx, inner, width = low.ctx, routed.top_k * op.width, op.downs[0].shape[0]
    groups = _lower_groups(low, op, routed)
    gate, up, act = (_scratch(low, part, inner) for part in ("gate", "up", "act"))
    why = low.select.why_experts(ctx, gates, tiled=True, int8=True)
    x = low.in_int8(op.x, low.values.get(op.x), gates.k, why)
    for weight, y, name in ((gates, gate, "gate"), (ups, up, "up")):
        label, why = f"{op.out}.{name}", low.select.why_experts(ctx, weight, tiled=True, int8=True)
        low.emit(expert_rows(ctx, weight, routed, groups, x, y, by_route=False, label=label), why)
    label = f"{op.out}.act"
    low.emit(
        gated_activation(ctx, gate, up, act, width=inner, activation=op.activation, label=label)
    )
    routes = ctx.max_rows * routed.top_k
    q_size, scales_size = int8_sizes(routes, downs.k)
    handed = Int8Rows(
        low.workspace.named(f"experts.q.{routes}.{downs.k}", q_size),
        low.workspace.named(f"experts.q scales.{routes}.{downs.k}", scales_size),
        padded_rows(routes),
        downs.k,
    )
    why = low.select.why_experts(ctx, downs, tiled=True, int8=True)
    made = quantize_rows(ctx, act, handed, per_row=routed.top_k, label=f"{label}.int8")
    low.emit(made, why)
    parts = _scratch(low, "parts", routed.top_k * width)
    made = expert_rows(
        ctx, downs, routed, groups, handed, parts, by_route=True, label=f"{op.out}.down"
    )
    low.emit(made, why)
    low.emit(
        expert_combine(ctx, routed, parts, out, width=width, accumulate=accumulate, label=op.out)
    )


def _is_tiled(low: Lowering) -> bool:
    """Whether the rows of an expert are multiplied together."""
    return low.ctx.max_rows >= MIN_ROWS


def _scratch(low: Lowering, part: str, width: int) -> BufferSlice:
    rows = low.ctx.max_rows
    return low.workspace.named(f"experts.{part}.{rows}", low.ctx.value_bytes * rows * width)


def _lower_groups(low: Lowering, op: Experts, routed: Routed) -> BufferSlice:
    size = groups_bytes(low.ctx, routed.experts)
    groups = low.workspace.named(f"experts.groups.{low.ctx.max_rows}", size)
    low.emit(expert_groups(low.ctx, routed, groups, label=f"{op.out}.groups"))
    return groups


def lower_sigmoid_gate(low: Lowering, op: SigmoidGate) -> None:
    """The branch times its row's factor, in place."""
    assert low.values.readers[op.branch] == 1, "only the gate reads its branch"
    low.emit(
        sigmoid_gate(
            low.ctx,
            low.values.get(op.x),
            low.weights.vectors[op.weight.name],
            low.values.get(op.branch),
            k=op.weight.shape[1],
            width=low.values.held[op.branch][0],
            label=op.out,
        )
    )
    low.values.read(op.x)
    low.values.rename(op.branch, op.out)
