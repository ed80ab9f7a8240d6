"""The patterns of a layer as launches: what serves a norm and the linears that read it."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_manifests.graph.ops import GatedActivation, Linear

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.lower_attention import serve_placed_attention
from rdrr_runtime.compile.lower_ops import lower_op
from rdrr_runtime.compile.lower_products import (
    Operand,
    Served,
    emit_branch,
    emit_folded,
    emit_one_row,
    emit_small_batch,
    fold,
    normed,
    small_batch_input,
)
from rdrr_runtime.compile.patterns import GatedFeedForward, NormedLinears, Projections
from rdrr_runtime.compile.products import Family
from rdrr_runtime.phases import matvec, matvec_rows
from rdrr_runtime.phases.matvec import Input, Output
from rdrr_runtime.phases.matvec_rows import RowsOutput, buffers_bound
from rdrr_runtime.phases.phase import MOST_BUFFERS

MOST_MATRICES = 3
"""Matrices that one launch of a small-batch product takes."""


def serve_gated(build: PassBuilder, found: GatedFeedForward) -> int:
    """Serve norm, gate and up and the activation; how many ops that was, or 0.

    The projection after them is served too where the activation reaches it in int8.
    """
    weights = [build.matrix(one.weight) for one in found.linears]
    gated = fold(build, weights, gate=True)
    if gated is None:
        return 0
    down = _down_in_int8(build, found, gated)
    x, activation = normed(build, gated, found.norm), found.activation
    if down is None or found.down is None:
        y, kind = build.values.take(activation.out, activation.width), activation.activation
        emit_folded(build, gated, x, y, "gate", activation=kind, label=activation.out)
        build.values.read(found.norm.x)
        return found.own_count
    handed, depends = _emit_gated_in_int8(build, activation, gated, down, x)
    build.values.read(found.norm.x)
    emit_branch(build, down, found.down, handed, depends)
    return found.own_count + found.down.count


def _down_in_int8(build: PassBuilder, found: GatedFeedForward, gated: Served) -> Served | None:
    """Return the projection after the activation, if that can hand it int8."""
    op = found.down.op if found.down is not None else None
    if not isinstance(op, Linear):
        return None
    down = fold(build, (build.matrix(op.weight),))
    if down is None or down.family is not gated.family or down.by_column or gated.by_column:
        return None
    if not (gated.int8 and down.int8):
        return None
    leaves = matvec.leaves_int8 if gated.family is Family.ONE_ROW else matvec_rows.leaves_int8
    return down if leaves(build.ctx, found.activation.width) else None


def _emit_gated_in_int8(
    build: PassBuilder, op: GatedActivation, gated: Served, down: Served, x: Operand
) -> tuple[Operand, tuple[AnyTuningKey, ...]]:
    """Emit gate, up and activation; what the projection reads, and what that depends on."""
    if isinstance(x, Input):
        codes = build.workspace.named("gated", op.width)
        scales = build.workspace.named("gated scales", op.width // 2)
        output = Output(codes, "gate", activation=op.activation, scales=scales)
        launch = emit_one_row(build, gated, x, output, op.out)
        return Input(codes, scales=scales), launch.tuning_keys
    handed = small_batch_input(build, down, "int8 gated")
    to_rows = RowsOutput((handed,), "gate", activation=op.activation, int8=True)
    emit_small_batch(build, gated, x, to_rows, op.out)
    return handed, ()


def serve_normed_linears(
    build: PassBuilder, found: NormedLinears, layer: Projections | None
) -> int:
    """Serve a norm and the linears that read it; how many ops that was, or 0.

    A small batch takes two launches, and where they are the projections of a layer, its attention
    follows. Of more rows the products run side by side: between launches of which neither reads
    what the other writes there is no barrier, so small products fill a device together.
    """
    served = _small_batch_projections(build, found)
    if served is None:
        return _side_by_side(build, found)
    x = normed(build, served, found.norm)
    assert isinstance(x, BufferSlice), "the rows of a small batch"
    build.values.read(found.norm.x)
    ys = tuple(build.values.take(one.out, one.weight.shape[0]) for one in found.linears)
    names = [found.linears[0].out, *(one.out.rpartition(".")[2] for one in found.linears[1:])]
    output = RowsOutput(ys, bias=build.joined_bias(found.linears))
    emit_small_batch(build, served, x, output, "+".join(names))
    if layer is not None and serve_placed_attention(build, layer):
        return layer.count
    for op in found.others:
        lower_op(build, op)
    return found.count


def _small_batch_projections(build: PassBuilder, found: NormedLinears) -> Served | None:
    linears = found.linears
    weights = [build.matrix(one.weight) for one in linears]
    has_bias = linears[0].bias is not None
    if len(linears) > MOST_MATRICES or any((one.bias is not None) != has_bias for one in linears):
        return None
    if buffers_bound(weights, bias=has_bias) > MOST_BUFFERS:
        return None
    served = fold(build, weights)
    return served if served is not None and served.family is Family.SMALL_BATCH else None


def _side_by_side(build: PassBuilder, found: NormedLinears) -> int:
    """Emit a norm, its linears, then the norms and ropes that stood between these."""
    # Only what changes the products in place: buffers are not taken out of turn.
    if build.ctx.max_rows == 1 or len(found.linears) < 2:
        return 0
    for op in (found.norm, *found.linears, *found.others):
        lower_op(build, op)
    return found.count
