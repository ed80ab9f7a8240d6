"""Fusions of the decode pass: runs of ops that one dispatch serves when there is one token row.

    qkv and attention   norm, three projections, norms, ropes, cache and scores   2 dispatches
    output projection   joins the parts of attention, adds to the residual stream   1
    gated feed-forward  norm, gate and up, activation   1
    down projection     adds to the residual stream   1
    head                final norm, logits, their largest   1

A fusion looks at the ops from some index on and either emits dispatches and says how many ops it
served, or says 0 and leaves them to the general lowering. It knows ops and their operands, never
an architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch
from rdrr_device.tuning import AnySite
from rdrr_manifests.graph import Attention, GatedActivation, Head, Linear, Norm, Op, Residual, Rope

from rdrr_runtime.compile.select import MatmulPlan, Why
from rdrr_runtime.phases.attention_decode import (
    SPLITS,
    DecodeAttention,
    SplitTuning,
    attention_decode,
)
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.matvec import (
    CANDIDATE_BYTES,
    MAX_OUTPUT_GROUPS,
    Input,
    Output,
    leaves_int8,
    matvec,
    suits,
)

if TYPE_CHECKING:
    from rdrr_runtime.compile.lower import Lowering

Fusion = Callable[["Lowering", Sequence[Op], int], int]


@dataclass(frozen=True)
class _Product:
    """A fused product with some matrices, as the hints want it."""

    low: Lowering
    weights: tuple[GpuWeight, ...]

    @property
    def plan(self) -> MatmulPlan:
        return self.low.select.matmul(self.weights)

    def suits(self, shares: int = 0, *, gate: bool = False) -> bool:
        """Whether hints allow the fused kernel and it can run."""
        plan = self.plan
        ctx = plan.context(self.low.ctx)
        fits = suits(ctx, self.weights, int8=plan.int8, shares=shares, gate=gate)
        return fits and not plan.tiled

    def emit(
        self, source: Input, output: Output, label: str, sites: tuple[AnySite, ...] = ()
    ) -> list[Dispatch]:
        """Emit the launch, with the reason for it; `sites` are what its input depends on."""
        low, plan = self.low, self.plan
        ctx = plan.context(low.ctx)
        made = matvec(ctx, self.weights, source, output, int8=plan.int8, label=label, sites=sites)
        low.emit(made, low.select.why_matmul(low.ctx, self.weights, 1, int8=plan.int8))
        return made


def _norm_input(low: Lowering, norm: Norm) -> Input:
    gain = low.weights.vectors[norm.weight.name]
    return Input(low.values.get(norm.x), gain, norm.eps, float(norm.unit_offset))


@dataclass(frozen=True)
class Projections:
    """The ops between a layer's first norm and its attention."""

    norm: Norm
    linears: tuple[Linear, Linear, Linear]
    head_norms: tuple[Norm, Norm] | None
    ropes: tuple[Rope, Rope] | None
    attention: Attention
    count: int


def match_projections(ops: Sequence[Op], index: int) -> Projections | None:
    """The run norm, (linear, head norm?, rope?) twice, linear, attention; or None."""
    norm = ops[index]
    if not isinstance(norm, Norm) or norm.groups != 1:
        return None
    at = index + 1
    linears: list[Linear] = []
    norms: list[Norm] = []
    ropes: list[Rope] = []
    while at < len(ops) and not isinstance(ops[at], Attention):
        op = ops[at]
        if isinstance(op, Linear) and op.x == norm.out:
            linears.append(op)
        elif isinstance(op, Norm) and linears and op.x == linears[-1].out:
            norms.append(op)
        elif isinstance(op, Rope) and linears:
            ropes.append(op)
        else:
            return None
        at += 1
    attention = ops[at] if at < len(ops) else None
    if not isinstance(attention, Attention) or len(linears) != 3:
        return None
    if len(norms) not in (0, 2) or len({one.table for one in ropes}) > 1:
        return None
    ends = ropes or norms or linears[:2]
    made = [one.out for one in (*ends, linears[2])]
    if made != [attention.q, attention.k, attention.v]:
        return None
    head_norms = (norms[0], norms[1]) if norms else None
    if head_norms and head_norms[0].eps != head_norms[1].eps:
        return None
    return Projections(
        norm,
        (linears[0], linears[1], linears[2]),
        head_norms,
        (ropes[0], ropes[1]) if ropes else None,
        attention,
        at + 1 - index,
    )


def attention_block(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """From a layer's first norm to its output projection, and the residual after that."""
    found = match_projections(ops, index)
    after = index + found.count if found else len(ops)
    output = ops[after] if after < len(ops) else None
    if found is None or not isinstance(output, Linear) or output.x != found.attention.out:
        return 0
    weights = tuple(low.weights.matrices[one.weight.name] for one in found.linears)
    out_weight = low.weights.matrices[output.weight.name]
    spec = attention_spec(low, found)
    shares = spec.heads * spec.splits
    projections = _Product(low, weights)
    if not (
        low.select.fuses_attention()
        and projections.suits()
        and _Product(low, (out_weight,)).suits(shares)
        and spec.suits(low.ctx, low.max_buffers)
        and len({one.bias is None for one in found.linears}) == 1
    ):
        return 0
    out_product = _Product(low, (out_weight,))
    split = low.ctx.site(
        f"softmax attention_decode.{spec.shape}", spec.split, _splits(spec, out_product)
    )
    spec = replace(spec, split=split.used)
    layer = f"layer {found.attention.layer}"
    projected = low.workspace.named(
        "projected", low.ctx.value_bytes * sum(one.n for one in weights)
    )
    bias = joined_bias(low, found.linears)
    source = _norm_input(low, found.norm)
    projections.emit(source, Output(projected, bias=bias), f"{layer} qkv")
    parts, stats = emit_attention(low, found, spec, projected, (split,))
    low.values.read(found.norm.x)
    source = Input(parts, stats=stats, splits=spec.splits, head_dim=spec.cache.head_dim)
    return found.count + _project_out(low, ops, after, output, source, (split,))


def _splits(spec: DecodeAttention, product: _Product) -> Iterator[SplitTuning]:
    """Ways to part the keys that the output projection can join."""
    seen = {spec.splits}
    for one in SPLITS:
        parts = replace(spec, split=one).splits
        if parts not in seen and product.suits(spec.heads * parts):
            seen.add(parts)
            yield one


def attention_spec(low: Lowering, found: Projections) -> DecodeAttention:
    """What the attention of a layer computes."""
    op, norms = found.attention, found.head_norms
    return DecodeAttention(
        heads=op.heads,
        cache=low.cache.spec,
        pairs=low.graph.ropes[found.ropes[0].table].rotary_dim // 2 if found.ropes else 0,
        scale=op.scale,
        window=op.window or 0,
        softcap=op.softcap or 0.0,
        eps=norms[0].eps if norms else 0.0,
        offset=float(norms[0].unit_offset) if norms else 0.0,
    )


def joined_bias(low: Lowering, linears: Sequence[Linear]) -> BufferSlice | None:
    """The biases of some linears one after the other, if they have any."""
    names = [one.bias.name for one in linears if one.bias is not None]
    return low.weights.joined(names) if names else None


def emit_attention(
    low: Lowering,
    found: Projections,
    spec: DecodeAttention,
    projected: BufferSlice,
    sites: tuple[AnySite, ...] = (),
) -> tuple[BufferSlice, BufferSlice]:
    """The attention of the rows of a pass; its parts and their statistics.

    `sites` are what the parts depend on.
    """
    rows = low.ctx.max_rows
    parts = low.workspace.named("attention parts", rows * spec.parts_bytes)
    stats = low.workspace.named("attention stats", rows * spec.stats_bytes)
    layer = low.cache.layers[found.attention.layer]
    gains = None
    if found.head_norms:
        q_norm, k_norm = (low.weights.vectors[one.weight.name] for one in found.head_norms)
        gains = (q_norm, k_norm)
    low.emit(
        attention_decode(
            low.ctx,
            projected,
            low.ropes[found.ropes[0].table] if found.ropes else None,
            gains,
            (layer.keys, layer.values),
            parts,
            stats,
            spec=spec,
            label=f"layer {found.attention.layer} attention",
            sites=sites,
        ),
        Why("auto: fused with norms, rope and the cache"),
    )
    return parts, stats


def _project_out(
    low: Lowering,
    ops: Sequence[Op],
    index: int,
    linear: Linear,
    source: Input,
    sites: tuple[AnySite, ...] = (),
) -> int:
    """A linear from `source`, added to the residual stream where that is what follows.

    `sites` are what the source depends on.
    """
    weight = low.weights.matrices[linear.weight.name]
    following = ops[index + 1] if index + 1 < len(ops) else None
    bias = None if linear.bias is None else low.weights.vectors[linear.bias.name]
    adds = isinstance(following, Residual) and low.can_add(linear, following)
    if adds:
        assert isinstance(following, Residual)
        output = Output(low.values.get(following.x), "add", bias)
    else:
        output = Output(low.values.take(linear.out, weight.n), "store", bias)
    _Product(low, (weight,)).emit(source, output, linear.out, sites)
    if not adds:
        return 1
    assert isinstance(following, Residual)
    low.values.rename(following.x, following.out)
    return 2


def gated_feed_forward(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """Norm, gate and up (one matrix or two), activation."""
    norm = ops[index]
    if not isinstance(norm, Norm) or norm.groups != 1:
        return 0
    end = index + 1
    while end < len(ops) and isinstance(ops[end], Linear):
        end += 1
    linears = [op for op in ops[index + 1 : end] if isinstance(op, Linear)]
    activation = ops[end] if end < len(ops) else None
    if not isinstance(activation, GatedActivation):
        return 0
    operands = [name for name in (activation.gate, activation.up) if name is not None]
    if [one.out for one in linears] != operands or any(
        one.x != norm.out or one.bias for one in linears
    ):
        return 0
    product = _Product(low, tuple(low.weights.matrices[one.weight.name] for one in linears))
    if not product.suits(gate=True):
        return 0
    down = _down_in_int8(low, product, ops, end)
    if down is not None:
        words = low.workspace.named("gated", activation.width)
        scales = low.workspace.named("gated scales", activation.width // 2)
        output = Output(words, "gate", activation=activation.activation, scales=scales)
        made = product.emit(_norm_input(low, norm), output, activation.out)
        low.values.read(norm.x)
        source = Input(words, scales=scales)
        served = _project_out(low, ops, end + 1, down, source, made[0].sites)
        return end + 1 - index + served
    y = low.values.take(activation.out, activation.width)
    output = Output(y, "gate", activation=activation.activation)
    product.emit(_norm_input(low, norm), output, activation.out)
    low.values.read(norm.x)
    return end + 1 - index


def _down_in_int8(
    low: Lowering, gate_and_up: _Product, ops: Sequence[Op], activation: int
) -> Linear | None:
    """The projection after a gated activation, if the activation can reach it as int8."""
    gated = ops[activation]
    down = ops[activation + 1] if activation + 1 < len(ops) else None
    if not isinstance(gated, GatedActivation) or not isinstance(down, Linear):
        return None
    product = _Product(low, (low.weights.matrices[down.weight.name],))
    ctx = product.plan.context(low.ctx)
    fits = product.suits() and leaves_int8(ctx, gated.width)
    both = all(
        one.plan.int8 and not any(weight.by_column for weight in one.weights)
        for one in (gate_and_up, product)
    )
    return down if down.x == gated.out and fits and both else None


def lone_linear(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """A linear, with the residual after it where there is one."""
    linear = ops[index]
    if not isinstance(linear, Linear):
        return 0
    weight = low.weights.matrices[linear.weight.name]
    if not _Product(low, (weight,)).suits():
        return 0
    source = Input(low.values.get(linear.x))
    served = _project_out(low, ops, index, linear, source)
    low.values.read(linear.x)
    return served


DECODE_FUSIONS: tuple[Fusion, ...] = (attention_block, gated_feed_forward, lone_linear)
"""Tried in order at each op of a decode pass."""


def fused_head(
    low: Lowering, norm: Norm, head: Head
) -> tuple[BufferSlice, BufferSlice, Dispatch] | None:
    """Final norm, logits and their largest; (logits, candidates, the launch), or None."""
    weight = low.weights.matrices[head.weight.name]
    product = _Product(low, (weight,))
    plain = head.scale == 1.0 and head.softcap is None
    if not plain or not product.suits():
        return None
    logits = low.workspace.named("logits.1", 4 * weight.n)
    candidates = low.workspace.named("candidates", CANDIDATE_BYTES * MAX_OUTPUT_GROUPS)
    output = Output(logits, "best", best=candidates)
    made = product.emit(_norm_input(low, norm), output, "head")
    return logits, candidates, made[0]
