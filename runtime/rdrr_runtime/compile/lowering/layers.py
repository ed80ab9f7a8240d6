"""Lowering of the patterns of a layer: a norm with the linears that read it, and what follows."""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Linear, Norm

from rdrr_runtime.compile.choice.products import Family
from rdrr_runtime.compile.lowering.attention import serve_attention_after_projections
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.down import serve_whole
from rdrr_runtime.compile.lowering.inputs import norm_input, normed
from rdrr_runtime.compile.lowering.ops import lower_op
from rdrr_runtime.compile.lowering.products import (
    Served,
    emit_branch,
    emit_product,
    fused_product,
    int8_gate,
    tiled,
)
from rdrr_runtime.compile.patterns.attention import NormedProjections
from rdrr_runtime.compile.patterns.layers import (
    Branch,
    GatedFeedForward,
    NormedLinears,
)
from rdrr_runtime.phases.products.fusion import GatedPair, Input, Output

JOINED_ROWS = 32
"""Rows up to which gate and up of two matrices leave one output of both, which may be in splits."""


def serve_gated(build: PassBuilder, pattern: GatedFeedForward) -> int:
    """Emit norm, gate, up and activation with fused kernels; return the number of ops, or 0.

    The down projection is emitted as well if the activation can hand it over in int8.
    """
    weights = [build.matrix(linear.weight) for linear in pattern.linears]
    gated = fused_product(build, weights, gate=True)
    if gated is None:
        return _gated_tiles(build, pattern)
    if pattern.down is not None and serve_whole(build, gated, pattern):
        return pattern.own_count + pattern.down.count
    activation, down = pattern.activation, _down(build, pattern)
    quantized = None if down is None else int8_gate(build, gated, down, activation)
    if quantized is None or down is None or pattern.down is None:
        y = build.values.allocate(activation.out, activation.width)
        output = Output((y,), "gate", activation=activation.activation, clamp=activation.clamp)
        source = norm_input(build, pattern.norm, weights, output)
        emit_product(build, gated, source, output, activation.out)
        build.values.mark_read(pattern.norm.x)
        return pattern.own_count
    output, handed = quantized
    source = norm_input(build, pattern.norm, weights, output)
    (*_, phase) = emit_product(build, gated, source, output, activation.out)
    build.values.mark_read(pattern.norm.x)
    emit_branch(build, down, pattern.down, handed, phase.tuning_keys)
    return pattern.own_count + pattern.down.count


def _gated_tiles(build: PassBuilder, pattern: GatedFeedForward) -> int:
    """Emit norm, gate, up, activation and down projection of many rows; return the number of ops.

    The norm and the activation are computed as their results are rounded. Returns 0 if a product is
    not of `TILED_FAMILIES`.
    """
    activation, branch = pattern.activation, pattern.down
    op = None if branch is None else branch.op
    if branch is None or not isinstance(op, Linear):
        return 0
    served = tiled(build, (*pattern.linears, op))
    if served is None:
        return 0
    joined = _gate_and_up(build, pattern)
    if joined is not None:
        gate, up = joined, None
    else:
        emit_normed(build, pattern.norm, pattern.linears, served)
        gate = build.values.get(activation.gate)
        up = None if activation.up is None else build.values.get(activation.up)
    before = GatedPair(up, activation.activation, activation.clamp)
    emit_branch(build, served[-1], branch, Input(gate, before, name=activation.out))
    if joined is None:
        build.values.mark_read(activation.gate, activation.up)
    return pattern.own_count + branch.count


def _gate_and_up(build: PassBuilder, pattern: GatedFeedForward) -> BufferSlice | None:
    """Emit gate and up of a batch in one launch; return [rows, both], or None if none can."""
    if build.ctx.max_rows > JOINED_ROWS:
        return None
    weights = [build.matrix(linear.weight) for linear in pattern.linears]
    served = fused_product(build, weights) if len(weights) > 1 else None
    if served is None or served.family is not Family.MATRICES:
        return None
    rows = build.ctx.max_rows
    size = build.ctx.value_bytes * rows * sum(weight.n for weight in weights)
    y = build.workspace.named(f"gate and up.{rows}", size)
    source = normed(build, pattern.norm, build.values.get(pattern.norm.x))
    label = f"{pattern.linears[0].out}+{pattern.linears[1].out.rpartition('.')[2]}"
    emit_product(build, served, source, Output((y,)), label)
    build.values.mark_read(pattern.norm.x)
    return y


def emit_normed(
    build: PassBuilder, norm: Norm, linears: Sequence[Linear], served: Sequence[Served]
) -> None:
    """Emit tiled products that share a norm, which is computed as its result is rounded."""
    source = normed(build, norm, build.values.get(norm.x))
    left = list(zip(linears, served, strict=False))
    while left:
        pair = _pair(build, [op for op, _ in left[:2]])
        if pair is None:
            op, product = left.pop(0)
            emit_branch(build, product, Branch(op), source)
        else:
            _emit_pair(build, pair, [op for op, _ in left[:2]], source)
            del left[:2]
    build.values.mark_read(norm.x)


def _pair(build: PassBuilder, linears: Sequence[Linear]) -> Served | None:
    """Return the product of two linears that share a launch; None if they do not.

    Two with as many outputs do, such as gate and up, or keys and values: the last tiles of the one
    and the first of the other occupy a GPU together, which a barrier would keep apart.
    """
    if build.ctx.max_rows <= JOINED_ROWS or len(linears) < 2:
        return None
    biased = {linear.bias is not None for linear in linears}
    weights = [build.matrix(linear.weight) for linear in linears]
    if len({weight.n for weight in weights}) > 1 or len(biased) > 1:
        return None
    served = fused_product(build, weights, separate_outputs=True, bias=biased == {True})
    return served if served is not None and served.family is Family.MATRICES else None


def _emit_pair(build: PassBuilder, pair: Served, linears: Sequence[Linear], source: Input) -> None:
    """Emit two linears that share a launch, each with an output of its own."""
    ys = tuple(build.values.allocate(op.out, op.weight.shape[0]) for op in linears)
    output = Output(ys, bias=build.concatenated_bias(linears))
    label = f"{linears[0].out}+{linears[1].out.rpartition('.')[2]}"
    emit_product(build, pair, source, output, label)


def _down(build: PassBuilder, pattern: GatedFeedForward) -> Served | None:
    """Return the product of the down projection, if one follows that can be fused."""
    op = pattern.down.op if pattern.down is not None else None
    return fused_product(build, (build.matrix(op.weight),)) if isinstance(op, Linear) else None


def serve_normed_linears(build: PassBuilder, projections: NormedProjections) -> int:
    """Emit a norm and the linears that read it; return the number of ops, or 0.

    A small batch takes two launches; if the linears are the projections of a layer, its attention
    is emitted as well. With more rows the products run concurrently: the device needs no barrier
    between launches that do not read each other's output, so small products share it.
    """
    pattern, layer = projections.linears, projections.layer
    served = _small_batch_projections(build, pattern)
    if served is None:
        return _emit_one_by_one(build, projections)
    ys = tuple(
        build.values.allocate(linear.out, linear.weight.shape[0]) for linear in pattern.linears
    )
    names = [pattern.linears[0].out, *(op.out.rpartition(".")[2] for op in pattern.linears[1:])]
    output = Output(ys, bias=build.concatenated_bias(pattern.linears))
    source = norm_input(build, pattern.norm, served.product.weights, output)
    emit_product(build, served, source, output, "+".join(names))
    build.values.mark_read(pattern.norm.x)
    if layer is not None and serve_attention_after_projections(build, layer):
        return layer.count
    for op in pattern.others:
        lower_op(build, op)
    return pattern.count


def _small_batch_projections(build: PassBuilder, pattern: NormedLinears) -> Served | None:
    linears = pattern.linears
    weights = [build.matrix(linear.weight) for linear in linears]
    has_bias = linears[0].bias is not None
    if any((linear.bias is not None) != has_bias for linear in linears):
        return None
    served = fused_product(build, weights, separate_outputs=True, bias=has_bias)
    return served if served is not None and served.family is Family.SMALL_BATCH else None


def _emit_one_by_one(build: PassBuilder, projections: NormedProjections) -> int:
    """Emit a norm, its linears, then the norms and ropes between them; return the number, or 0.

    If attention follows, norms, ropes and the cache store are one phase, and it is emitted too.
    The norms and ropes change the products in place, so reordering them takes no further buffers.
    """
    pattern, layer = projections.linears, projections.layer
    served = tiled(build, pattern.linears)
    if build.ctx.max_rows == 1 or (served is None and len(pattern.linears) < 2):
        return 0
    if served is None:
        lower_op(build, pattern.norm)
        for op in pattern.linears:
            lower_op(build, op)
    else:
        emit_normed(build, pattern.norm, pattern.linears, served)
    if layer is not None and serve_attention_after_projections(build, layer):
        return layer.count
    for other in pattern.others:
        lower_op(build, other)
    return pattern.count
