"""Lowering of mixtures of experts: the router, the routed experts, and the shared expert's gate.

The choice of experts stays on the GPU: kernels read the expert indices from the buffer of routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Experts, Residual, Router, SigmoidGate

from rdrr_runtime.compile.choice.decision import Chosen, Reason
from rdrr_runtime.compile.choice.experts import ExpertKernel, ExpertRequest, choose_experts
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.products import exact_product
from rdrr_runtime.phases.experts.int8 import expert_int8
from rdrr_runtime.phases.experts.linear import expert_linear
from rdrr_runtime.phases.experts.router_topk import RouterSpec, router_topk
from rdrr_runtime.phases.experts.routing import expert_combine, expert_groups, groups_bytes
from rdrr_runtime.phases.experts.sigmoid_gate import sigmoid_gate
from rdrr_runtime.phases.experts.tiled import expert_tiled
from rdrr_runtime.phases.norms.norm import NormForm, normalize
from rdrr_runtime.phases.products.fusion import Input, Output, RowNorm
from rdrr_runtime.phases.products.quantize_rows import QuantizedRows
from rdrr_runtime.phases.products.quantize_small_batch import (
    quantize_small_batch,
    small_batch_bytes,
)
from rdrr_runtime.phases.routes import ROUTE_WORDS, Routed
from rdrr_runtime.phases.rows.activation import activate
from rdrr_runtime.phases.rows.gated_activation import ExpertGates, gated_activation
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


def lower_router(build: PassBuilder, op: Router) -> None:
    """Emit the router, whose output is the routes of all rows: expert indices and weights."""
    rows, experts = build.ctx.max_rows, op.experts
    logits = build.workspace.named(f"router.{rows}", 4 * rows * experts)
    exact_product(build, op, logits)
    emit_routes(build, op, logits)
    build.values.mark_read(op.x)


def emit_routes(build: PassBuilder, op: Router, logits: BufferSlice) -> None:
    """Emit the selection of experts by the logits of a router, f32 [rows, experts]."""
    rows, experts = build.ctx.max_rows, op.experts
    routes = build.workspace.named(f"routes.{rows}", 4 * ROUTE_WORDS * rows * op.top_k)
    spec = RouterSpec(
        experts=experts,
        top_k=op.top_k,
        normalize=op.normalize,
        scoring=op.scoring,
        groups=op.groups,
        top_groups=op.top_groups,
        group_score=op.group_score,
        scale=op.scale,
        margin=op.margin,
    )
    added = None if op.selection_bias is None else build.vector(op.selection_bias)
    factors = None if op.expert_scale is None else build.vector(op.expert_scale)
    build.emit(
        router_topk(
            build.ctx,
            logits,
            routes,
            spec,
            selection_bias=added,
            expert_scale=factors,
            label=op.out,
        )
    )
    build.routed[op.out] = Routed(routes, experts, op.top_k)


@dataclass(frozen=True)
class _Stack:
    """The stacked matrices of all experts, and the kernel that multiplies by them."""

    weight: GpuWeight
    chosen: Chosen[ExpertKernel]

    @property
    def kernel(self) -> ExpertKernel:
        """The chosen kernel."""
        return self.chosen.candidate

    @property
    def reason(self) -> Reason:
        """Why the kernel was chosen."""
        return self.chosen.reason


@dataclass(frozen=True)
class _Mixture:
    """A mixture under construction: its op, routes, input, stacks, and output buffer."""

    build: PassBuilder
    op: Experts
    routed: Routed
    source: Input
    gates: _Stack | None
    ups: _Stack
    downs: _Stack
    out: BufferSlice
    accumulate: bool

    @property
    def x(self) -> BufferSlice:
        """Buffer of the input."""
        return self.source.x

    @property
    def inner(self) -> int:
        """Inner activations per row, over all experts of the row."""
        return self.routed.top_k * self.op.width

    @property
    def gated(self) -> tuple[_Stack, ...]:
        """The stacks that read the input: gates, if they are a stack of their own, and ups."""
        return (self.ups,) if self.gates is None else (self.gates, self.ups)

    def outer(self, stack: _Stack) -> int:
        """Return the products of a row with a stack that reads the input."""
        return self.routed.top_k * stack.weight.n // self.routed.experts

    @property
    def width(self) -> int:
        """Outputs per row."""
        return self.op.downs[0].shape[0]

    @property
    def inner_biases(self) -> BufferSlice | None:
        """Biases of all gates, then of all ups; None if there are none."""
        gate, up = self.op.gate_bias, self.op.up_bias
        assert (gate is None) == (up is None), "gates and ups have biases together"
        if gate is None or up is None:
            return None
        return self.build.model.weights.concatenated([gate.name, up.name])

    @property
    def down_biases(self) -> BufferSlice | None:
        """Biases of all down projections; None if there are none."""
        return None if self.op.down_bias is None else self.build.vector(self.op.down_bias)

    def scratch(self, name: str, width: int) -> BufferSlice:
        """Return a scratch buffer of `width` elements per row."""
        rows = self.build.ctx.max_rows
        size = self.build.ctx.value_bytes * rows * width
        return self.build.workspace.named(f"experts.{name}.{rows}", size)

    def activate(self, products: Sequence[BufferSlice]) -> BufferSlice:
        """Emit the activation of the products with `gated`; return its output."""
        ctx, label, name = self.build.ctx, f"{self.op.out}.act", self.op.activation
        if not self.op.is_gated:
            (up,) = products
            self.build.emit(activate(ctx, up, width=self.inner, activation=name, label=label))
            return up
        act = self.scratch("act", self.inner)
        phases = gated_activation(
            ctx,
            products[0],
            None if self.op.fused else products[1],
            act,
            width=self.inner,
            activation=name,
            clamp=self.op.clamp,
            gates=ExpertGates(self.routed, self.inner_biases),
            label=label,
        )
        self.build.emit(phases)
        return act


def lower_experts(build: PassBuilder, op: Experts, residual: Residual | None = None) -> None:
    """Emit the weighted sum of the routed experts, added to the residual stream if one follows."""
    x = Input(build.values.get(op.x), name=op.x)
    out = build.target(op.out, op.downs[0].shape[0], residual)
    emit_experts(build, op, x, out, accumulate=residual is not None)
    build.values.mark_read(op.x)


def emit_experts(
    build: PassBuilder, op: Experts, source: Input, out: BufferSlice, *, accumulate: bool
) -> None:
    """Emit the weighted sum of the routed experts.

    Args:
        build: The pass under construction.
        op: The experts.
        source: Their input, possibly with the norm before it.
        out: Buffer of the result.
        accumulate: Whether the result is added to what the buffer holds.
    """
    routed = replace(build.routed[op.router], scales_inputs=op.scales_inputs)
    groups = [group for group in (op.gates, op.ups, op.downs) if group]
    weights = tuple(build.model.weights.stack(group) for group in groups)
    *gates, ups, downs = (
        _Stack(
            weight,
            choose_experts(ExpertRequest(build.ctx, weight, weights), build.model.preferences),
        )
        for weight in weights
    )
    if source.before is not None and (downs.kernel.tiled or not downs.kernel.int8):
        source = _normed(build, source, op.ups[0].shape[1])
    gate = gates[0] if gates else None
    mixture = _Mixture(build, op, routed, source, gate, ups, downs, out, accumulate)
    kinds = {(stack.kernel.tiled, stack.kernel.int8) for stack in (*gates, ups, downs)}
    assert len(kinds) == 1, "refusals depend on the pass and on all stacks"
    if downs.kernel.tiled:
        _tiles(mixture)
    elif downs.kernel.int8:
        _int8_routes(mixture)
    else:
        _routes(mixture)


def _normed(build: PassBuilder, source: Input, width: int) -> Input:
    """Emit the norm before an input, for kernels that do not apply it themselves."""
    norm = source.before
    assert isinstance(norm, RowNorm), "experts have no other op before them"
    size = build.ctx.value_bytes * build.ctx.max_rows * width
    y = build.workspace.named(f"experts.normed.{build.ctx.max_rows}", size)
    form = NormForm(width=width, eps=norm.eps, weight=norm.gain, offset=norm.offset)
    build.emit(normalize(build.ctx, source.x, y, form, label=source.name))
    return Input(y, name=source.name)


def _routes(mixture: _Mixture) -> None:
    """Emit products in which each route reads its expert's weights, in f32."""
    build, op, routed, downs = mixture.build, mixture.op, mixture.routed, mixture.downs
    products = []
    for stack in mixture.gated:
        name = "up" if stack is mixture.ups else "gate"
        y, ctx = mixture.scratch(name, mixture.outer(stack)), stack.kernel.context(build.ctx)
        label = f"{op.out}.{name}"
        phases = expert_linear(ctx, stack.weight, routed, mixture.x, y, by_route=False, label=label)
        build.emit(phases, stack.reason)
        products.append(y)
    phases = expert_linear(
        downs.kernel.context(build.ctx),
        downs.weight,
        routed,
        mixture.activate(products),
        mixture.out,
        by_route=True,
        accumulate=mixture.accumulate,
        bias=mixture.down_biases,
        label=op.out,
    )
    build.emit(phases, downs.reason)


def _int8_routes(mixture: _Mixture) -> None:
    """Emit products in which each route reads its expert's weights, in int8."""
    build, op, routed = mixture.build, mixture.op, mixture.routed
    ups, downs = mixture.ups, mixture.downs
    ctx, act = build.ctx, mixture.scratch("act", mixture.inner)
    wide = small_batch_bytes(ctx.max_rows, ups.weight.k)
    narrow = small_batch_bytes(ctx.max_rows * routed.top_k, downs.weight.k)
    x = build.workspace.named(f"experts.int8.{ctx.max_rows}", wide)
    inner = build.workspace.named(f"experts.act.int8.{ctx.max_rows}", narrow)
    label, before = f"{op.out}.act", mixture.source.before
    assert before is None or isinstance(before, RowNorm), "experts have no other op before them"
    build.emit(
        quantize_small_batch(
            ctx,
            mixture.x,
            x,
            k=ups.weight.k,
            before=before,
            label=f"{op.x}.int8",
        ),
        ups.reason,
    )
    kind = "gate" if op.is_gated else "activate"
    output = Output((act,), kind, mixture.inner_biases, activation=op.activation, clamp=op.clamp)
    weights = tuple(stack.weight for stack in mixture.gated)
    phases = expert_int8(ctx, weights, routed, x, output, label=label)
    build.emit(phases, ups.reason)
    phases = quantize_small_batch(
        ctx, act, inner, k=downs.weight.k, per_row=routed.top_k, label=f"{label}.int8"
    )
    build.emit(phases, downs.reason)
    kind = "add" if mixture.accumulate else "store"
    output = Output((mixture.out,), kind, mixture.down_biases)
    phases = expert_int8(ctx, (downs.weight,), routed, inner, output, label=op.out)
    build.emit(phases, downs.reason)


def _tiles(mixture: _Mixture) -> None:
    """Emit products in which the rows of an expert share its weights, in f32 or in int8."""
    build, op, routed, downs = mixture.build, mixture.op, mixture.routed, mixture.downs
    ctx, int8 = build.ctx, downs.kernel.int8
    groups = build.workspace.named(
        f"experts.groups.{ctx.max_rows}", groups_bytes(ctx, routed.experts)
    )
    build.emit(expert_groups(ctx, routed, groups, label=f"{op.out}.groups"))
    source, ups = mixture.x, mixture.ups
    x = build.quantized(op.x, source, ups.weight.k, ups.reason) if int8 else source

    def emit(
        stack: _Stack, name: str, x: BufferSlice | QuantizedRows, y: BufferSlice
    ) -> BufferSlice:
        by_route, label = stack is downs, f"{op.out}.{name}"
        phases = expert_tiled(
            ctx, stack.weight, routed, groups, x, y, by_route=by_route, label=label
        )
        build.emit(phases, stack.reason)
        return y

    products = []
    for stack in mixture.gated:
        name = "up" if stack is ups else "gate"
        products.append(emit(stack, name, x, mixture.scratch(name, mixture.outer(stack))))
    act = mixture.activate(products)
    inner: BufferSlice | QuantizedRows = act
    if int8:
        name, k, top_k = f"{op.out}.act", downs.weight.k, routed.top_k
        inner = build.quantized(name, act, k, downs.reason, per_row=top_k)
    results = emit(downs, "down", inner, mixture.scratch("down", routed.top_k * mixture.width))
    phases = expert_combine(
        ctx,
        routed,
        results,
        mixture.out,
        width=mixture.width,
        bias=mixture.down_biases,
        accumulate=mixture.accumulate,
        label=op.out,
    )
    build.emit(phases)


def lower_sigmoid_gate(build: PassBuilder, op: SigmoidGate) -> None:
    """Emit the sigmoid gate, which multiplies each row of the branch by a factor, in place."""
    values = build.values
    assert values.readers[op.branch] == 1, "only the gate reads its branch"
    phases = sigmoid_gate(
        build.ctx,
        values.get(op.x),
        build.vector(op.weight),
        values.get(op.branch),
        k=op.weight.shape[1],
        width=values.live[op.branch][0],
        label=op.out,
    )
    build.emit(phases)
    values.mark_read(op.x)
    values.rename(op.branch, op.out)
