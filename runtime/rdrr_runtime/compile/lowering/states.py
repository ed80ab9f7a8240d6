"""Lowering of the ops with a recurrent state, and of slices of their inputs."""

from __future__ import annotations

from itertools import accumulate

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import ChannelFactors, DeltaRule, ShortConvolution, Slice, StateSpace

from rdrr_runtime.compile.choice.decision import Reason
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.pass_spec import Logits, Slots
from rdrr_runtime.phases.rows.slice import Part, copy_part
from rdrr_runtime.phases.states import delta_rule as delta
from rdrr_runtime.phases.states import state_space as scan
from rdrr_runtime.phases.states.delta_rule import DeltaOperands, DeltaSpec
from rdrr_runtime.phases.states.short_convolution import ConvolutionSpec, short_convolution
from rdrr_runtime.phases.states.state_space import (
    UNLIMITED,
    StateSpaceOperands,
    StateSpaceSizes,
    StateSpaceSpec,
    StepForm,
)
from rdrr_runtime.phases.states.tiles import CHUNK

IN_CHUNKS = Reason(f"in chunks of {CHUNK} rows (auto)")
ONE_BY_ONE = Reason("row by row (auto)")


def lower_slice(build: PassBuilder, op: Slice) -> None:
    """Emit the copy of a part of each group of a row."""
    values = build.values
    y = values.allocate(op.out, op.groups * op.width)
    part = Part(op.groups, op.size, op.first, op.width)
    build.emit(copy_part(build.ctx, values.get(op.x), y, part, label=op.out))
    values.mark_read(op.x)


def lower_short_convolution(build: PassBuilder, op: ShortConvolution) -> None:
    """Emit a short convolution, which also updates its state."""
    values = build.values
    phases = short_convolution(
        build.ctx,
        values.get(op.x),
        values.allocate(op.out, op.channels),
        build.vector(op.weight),
        None if op.bias is None else build.vector(op.bias),
        build.cache.states.buffers[op.state],
        spec=ConvolutionSpec(
            op.channels, op.kernel, op.activation, op.parts == 3, _ends(op.factors)
        ),
        single=_has_single_rows(build),
        label=op.out,
    )
    build.emit(phases)
    values.mark_read(op.x)


def lower_delta_rule(build: PassBuilder, op: DeltaRule) -> None:
    """Emit the gated delta rule: in chunks for many rows of a sequence, else row by row."""
    values, ctx = build.values, build.ctx
    spec = DeltaSpec(op.heads, op.key_heads, op.key_dim, op.value_dim, op.eps)
    operands = DeltaOperands(
        values.get(op.qkv),
        values.get(op.decay),
        values.get(op.strength),
        build.model.weights.concatenated([op.rate.name, op.decay_bias.name]),
        build.cache.states.buffers[op.state],
        values.allocate(op.out, spec.outputs),
    )
    refusal = _chunks_refusal(build) or delta.chunk_refusal(ctx, spec)
    if refusal is None:
        scratch = _scratch(build, spec)
        phases = delta.delta_rule_in_chunks(ctx, operands, scratch, spec=spec, label=op.out)
        build.emit(phases, IN_CHUNKS)
    else:
        single = _has_single_rows(build)
        phases = delta.delta_rule(ctx, operands, spec=spec, single=single, label=op.out)
        build.emit(phases, ONE_BY_ONE)
    values.mark_read(op.qkv, op.decay, op.strength)


def lower_state_space(build: PassBuilder, op: StateSpace) -> None:
    """Emit the state space: in chunks for many rows of a sequence, else row by row."""
    values, ctx = build.values, build.ctx
    sizes = StateSpaceSizes(op.heads, op.head_dim, op.groups, op.state_dim)
    most = UNLIMITED if op.most_step is None else op.most_step
    spec = StateSpaceSpec(sizes, StepForm(op.least_step, most, op.step_scale))
    names = [use.name for use in (op.rate, op.step_bias, op.skip)]
    operands = StateSpaceOperands(
        values.get(op.xbc),
        values.get(op.step),
        build.model.weights.concatenated(names),
        build.cache.states.buffers[op.state],
        values.allocate(op.out, sizes.outputs),
    )
    refusal = _chunks_refusal(build) or scan.chunk_refusal(ctx, sizes)
    if refusal is None:
        size = sizes.product_bytes(ctx.max_rows)
        products = build.workspace.named("state space products", size)
        phases = scan.state_space_in_chunks(ctx, operands, products, spec=spec, label=op.out)
        build.emit(phases, IN_CHUNKS)
    else:
        single = _has_single_rows(build)
        phases = scan.state_space(ctx, operands, spec=spec, single=single, label=op.out)
        build.emit(phases, ONE_BY_ONE)
    values.mark_read(op.xbc, op.step)


def _ends(factors: ChannelFactors | None) -> tuple[tuple[int, float], ...]:
    """Return the end of each run of channels with its factor."""
    if factors is None:
        return ()
    ends = accumulate(factors.counts)
    return tuple((end, float(factor)) for end, factor in zip(ends, factors.factors, strict=True))


def _has_single_rows(build: PassBuilder) -> bool:
    """Return whether no sequence has more than one row in a pass."""
    return build.ctx.max_rows == 1 or build.spec.slots is Slots.DISTINCT


def _chunks_refusal(build: PassBuilder) -> str | None:
    """Return why the rows of a pass cannot be computed in chunks; None if they can."""
    if build.spec.slots is not Slots.CONSECUTIVE:
        return "the rows belong to several sequences"
    if build.spec.logits is Logits.LAST_N:
        return "some rows may be draft tokens, which the state must not absorb"
    return None if build.ctx.max_rows >= CHUNK else f"there are fewer than {CHUNK} rows"


def _scratch(build: PassBuilder, spec: DeltaSpec) -> tuple[BufferSlice, BufferSlice, BufferSlice]:
    matrix, factors = spec.scratch_bytes(build.ctx.max_rows)
    named = build.workspace.named
    return (
        named("delta rule solved", matrix),
        named("delta rule scores", matrix),
        named("delta rule factors", factors),
    )
