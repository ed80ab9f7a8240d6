"""Mixtures of experts as launches: the router, the experts it chose, and the shared one's gate.

The choice of experts stays on the GPU: kernels read their numbers from the buffer of routes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import Experts, Router, SigmoidGate

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.decision import Chosen
from rdrr_runtime.compile.experts import ExpertKernel, ExpertRequest, choose_experts
from rdrr_runtime.compile.lower_products import exact_product
from rdrr_runtime.phases.expert_int8 import expert_down, expert_gate, expert_rows
from rdrr_runtime.phases.expert_linear import Routed, expert_each, expert_sum
from rdrr_runtime.phases.expert_tiled import (
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


def lower_router(build: PassBuilder, op: Router) -> Routed:
    """Emit the router; the routes of all rows."""
    rows, experts = build.ctx.max_rows, op.experts
    logits = build.workspace.named(f"router.{rows}", 4 * rows * experts)
    routes = build.workspace.named(f"routes.{rows}", 4 * ROUTE_WORDS * rows * op.top_k)
    exact_product(build, build.matrix(op.weight), build.values.get(op.x), logits, op.out)
    made = router_topk(
        build.ctx,
        logits,
        routes,
        experts=experts,
        top_k=op.top_k,
        normalize=op.normalize,
        label=op.out,
    )
    build.emit(made)
    build.values.read(op.x)
    return Routed(routes, experts, op.top_k)


@dataclass(frozen=True)
class _Stack:
    """The matrices of all experts, and what multiplies by them."""

    weight: GpuWeight
    chosen: Chosen[ExpertKernel]


@dataclass(frozen=True)
class _Mixture:
    """A mixture that is being built: its op, its routes, and where its sum goes."""

    build: PassBuilder
    op: Experts
    routed: Routed
    gates: _Stack
    ups: _Stack
    downs: _Stack
    out: BufferSlice
    accumulate: bool

    @property
    def inner(self) -> int:
        """Inner activations of a row, of all its experts."""
        return self.routed.top_k * self.op.width

    @property
    def width(self) -> int:
        """Outputs of a row."""
        return self.op.downs[0].shape[0]

    def scratch(self, part: str, width: int) -> BufferSlice:
        """Return a buffer for values of `width` elements per row."""
        rows = self.build.ctx.max_rows
        size = self.build.ctx.value_bytes * rows * width
        return self.build.workspace.named(f"experts.{part}.{rows}", size)

    def groups(self) -> BufferSlice:
        """Emit the grouping of routes by expert."""
        size = groups_bytes(self.build.ctx, self.routed.experts)
        groups = self.build.workspace.named(f"experts.groups.{self.build.ctx.max_rows}", size)
        label = f"{self.op.out}.groups"
        self.build.emit(expert_groups(self.build.ctx, self.routed, groups, label=label))
        return groups

    def activate(self, gate: BufferSlice, up: BufferSlice) -> BufferSlice:
        """Emit the activation of gate and up."""
        act = self.scratch("act", self.inner)
        made = gated_activation(
            self.build.ctx,
            gate,
            up,
            act,
            width=self.inner,
            activation=self.op.activation,
            label=f"{self.op.out}.act",
        )
        self.build.emit(made)
        return act

    def combine(self, parts: BufferSlice) -> None:
        """Emit the weighted sum of what the experts of a row made."""
        made = expert_combine(
            self.build.ctx,
            self.routed,
            parts,
            self.out,
            width=self.width,
            accumulate=self.accumulate,
            label=self.op.out,
        )
        self.build.emit(made)


def lower_experts(
    build: PassBuilder, op: Experts, routed: Routed, out: BufferSlice, *, accumulate: bool
) -> None:
    """Emit the sum of the routed experts into `out`, or added to what it holds."""
    stacks = tuple(build.model.weights.stack(group) for group in (op.gates, op.ups, op.downs))
    gates, ups, downs = (
        _Stack(one, choose_experts(ExpertRequest(build.ctx, one, stacks), build.model.preferences))
        for one in stacks
    )
    mixture = _Mixture(build, op, routed, gates, ups, downs, out, accumulate)
    kernels = {one.chosen.candidate for one in (gates, ups, downs)}
    if not all(one.int8 for one in kernels):
        _in_floats(mixture)
    elif all(one.tiled for one in kernels):
        _int8_tiles(mixture)
    else:
        _int8_routes(mixture)


def _in_floats(mixture: _Mixture) -> None:
    build, op, routed = mixture.build, mixture.op, mixture.routed
    stacks = (mixture.gates, mixture.ups, mixture.downs)
    groups = None
    if any(one.chosen.candidate.tiled for one in stacks):
        groups = mixture.groups()
    x = build.values.get(op.x)
    made = {}
    for stack, name in ((mixture.gates, "gate"), (mixture.ups, "up")):
        y, label = mixture.scratch(name, mixture.inner), f"{op.out}.{name}"
        kernel = stack.chosen.candidate
        ctx = kernel.context(build.ctx)
        if groups is not None and kernel.tiled:
            launches = expert_tiled(
                ctx, stack.weight, routed, groups, x, y, by_route=False, label=label
            )
        else:
            launches = expert_each(ctx, stack.weight, routed, x, y, label=label)
        build.emit(launches, stack.chosen.reason)
        made[name] = y
    act = mixture.activate(made["gate"], made["up"])
    downs, kernel = mixture.downs, mixture.downs.chosen.candidate
    ctx = kernel.context(build.ctx)
    if groups is None or not kernel.tiled:
        launches = expert_sum(
            ctx,
            downs.weight,
            routed,
            act,
            mixture.out,
            accumulate=mixture.accumulate,
            label=op.out,
        )
        build.emit(launches, downs.chosen.reason)
        return
    parts, label = mixture.scratch("parts", routed.top_k * mixture.width), f"{op.out}.down"
    launches = expert_tiled(
        ctx, downs.weight, routed, groups, act, parts, by_route=True, label=label
    )
    build.emit(launches, downs.chosen.reason)
    mixture.combine(parts)


def _int8_routes(mixture: _Mixture) -> None:
    build, op, routed = mixture.build, mixture.op, mixture.routed
    gates, ups, downs = mixture.gates, mixture.ups, mixture.downs
    ctx, act = build.ctx, mixture.scratch("act", mixture.inner)
    wide = int8_rows_bytes(ctx.max_rows, gates.weight.k)
    narrow = int8_rows_bytes(ctx.max_rows * routed.top_k, downs.weight.k)
    x = build.workspace.named(f"experts.int8.{ctx.max_rows}", wide)
    inner = build.workspace.named(f"experts.act.int8.{ctx.max_rows}", narrow)
    reason, label = gates.chosen.reason, f"{op.out}.act"
    source = build.values.get(op.x)
    build.emit(int8_rows(ctx, source, x, k=gates.weight.k, label=f"{op.x}.int8"), reason)
    made = expert_gate(
        ctx, gates.weight, ups.weight, routed, x, act, activation=op.activation, label=label
    )
    build.emit(made, reason)
    reason = downs.chosen.reason
    made = int8_rows(ctx, act, inner, k=downs.weight.k, per_row=routed.top_k, label=f"{label}.int8")
    build.emit(made, reason)
    made = expert_down(
        ctx, downs.weight, routed, inner, mixture.out, accumulate=mixture.accumulate, label=op.out
    )
    build.emit(made, reason)


def _int8_tiles(mixture: _Mixture) -> None:
    build, op, routed = mixture.build, mixture.op, mixture.routed
    ctx, groups = build.ctx, mixture.groups()
    k = mixture.gates.weight.k
    x = build.in_int8(op.x, build.values.get(op.x), k, mixture.gates.chosen.reason)
    made = {}
    for stack, name in ((mixture.gates, "gate"), (mixture.ups, "up")):
        y, label = mixture.scratch(name, mixture.inner), f"{op.out}.{name}"
        launches = expert_rows(ctx, stack.weight, routed, groups, x, y, by_route=False, label=label)
        build.emit(launches, stack.chosen.reason)
        made[name] = y
    act = mixture.activate(made["gate"], made["up"])
    downs, routes = mixture.downs, ctx.max_rows * routed.top_k
    q_size, scales_size = int8_sizes(routes, downs.weight.k)
    handed = Int8Rows(
        build.workspace.named(f"experts.q.{routes}.{downs.weight.k}", q_size),
        build.workspace.named(f"experts.q scales.{routes}.{downs.weight.k}", scales_size),
        padded_rows(routes),
        downs.weight.k,
    )
    launches = quantize_rows(ctx, act, handed, per_row=routed.top_k, label=f"{op.out}.act.int8")
    build.emit(launches, downs.chosen.reason)
    parts = mixture.scratch("parts", routed.top_k * mixture.width)
    launches = expert_rows(
        ctx, downs.weight, routed, groups, handed, parts, by_route=True, label=f"{op.out}.down"
    )
    build.emit(launches, downs.chosen.reason)
    mixture.combine(parts)


def lower_sigmoid_gate(build: PassBuilder, op: SigmoidGate) -> None:
    """Emit the branch times its row's factor, in place."""
    values = build.values
    assert values.readers[op.branch] == 1, "only the gate reads its branch"
    made = sigmoid_gate(
        build.ctx,
        values.get(op.x),
        build.vector(op.weight),
        values.get(op.branch),
        k=op.weight.shape[1],
        width=values.held[op.branch][0],
        label=op.out,
    )
    build.emit(made)
    values.read(op.x)
    values.rename(op.branch, op.out)
