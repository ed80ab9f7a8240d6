"""The patterns of a layer as launches: what serves a norm and the linears that read it."""

from __future__ import annotations

from rdrr_manifests.graph.ops import Linear

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.lower_attention import serve_placed_attention
from rdrr_runtime.compile.lower_ops import lower_op
from rdrr_runtime.compile.lower_products import (
    Served,
    emit_branch,
    emit_product,
    fold,
    handed_in_int8,
    norm_input,
)
from rdrr_runtime.compile.patterns import GatedFeedForward, NormedLinears, Projections
from rdrr_runtime.compile.products import Family
from rdrr_runtime.phases import matvec, matvec_rows
from rdrr_runtime.phases.fusion import Output


def serve_gated(build: PassBuilder, found: GatedFeedForward) -> int:
    """Serve norm, gate and up and the activation; how many ops that was, or 0.

    The projection after them is served too where the activation reaches it in int8.
    """
    weights = [build.matrix(one.weight) for one in found.linears]
    gated = fold(build, weights, gate=True)
    if gated is None:
        return 0
    down = _down_in_int8(build, found, gated)
    activation, source = found.activation, norm_input(build, found.norm)
    if down is None or found.down is None:
        y = build.values.take(activation.out, activation.width)
        output = Output((y,), "gate", activation=activation.activation)
        emit_product(build, gated, source, output, activation.out)
        build.values.read(found.norm.x)
        return found.own_count
    handed = handed_in_int8(build, down)
    output = Output(
        (handed.x,), "gate", activation=activation.activation, int8=True, scales=handed.scales
    )
    (phase,) = emit_product(build, gated, source, output, activation.out)
    build.values.read(found.norm.x)
    emit_branch(build, down, found.down, handed, phase.tuning_keys)
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
    leaves = (
        matvec.can_quantize_output
        if gated.family is Family.ONE_ROW
        else matvec_rows.can_quantize_output
    )
    return down if leaves(build.ctx, found.activation.width) else None


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
    ys = tuple(build.values.take(one.out, one.weight.shape[0]) for one in found.linears)
    names = [found.linears[0].out, *(one.out.rpartition(".")[2] for one in found.linears[1:])]
    output = Output(ys, bias=build.joined_bias(found.linears))
    emit_product(build, served, norm_input(build, found.norm), output, "+".join(names))
    build.values.read(found.norm.x)
    if layer is not None and serve_placed_attention(build, layer):
        return layer.count
    for op in found.others:
        lower_op(build, op)
    return found.count


def _small_batch_projections(build: PassBuilder, found: NormedLinears) -> Served | None:
    linears = found.linears
    weights = [build.matrix(one.weight) for one in linears]
    has_bias = linears[0].bias is not None
    if any((one.bias is not None) != has_bias for one in linears):
        return None
    served = fold(build, weights, apart=True, bias=has_bias)
    return served if served is not None and served.family is Family.SMALL_BATCH else None


def _side_by_side(build: PassBuilder, found: NormedLinears) -> int:
    """Emit a norm, its linears, then the norms and ropes that stood between these."""
    # Only what changes the products in place: buffers are not taken out of turn.
    if build.ctx.max_rows == 1 or len(found.linears) < 2:
        return 0
    for op in (found.norm, *found.linears, *found.others):
        lower_op(build, op)
    return found.count
