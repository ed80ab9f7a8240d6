"""Lowering of the patterns of a layer: a norm with the linears that read it, and what follows."""

from __future__ import annotations

from rdrr_manifests.graph.ops import Linear

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.lower_attention import serve_attention_after_projections
from rdrr_runtime.compile.lower_ops import lower_op
from rdrr_runtime.compile.lower_products import (
    Served,
    emit_branch,
    emit_product,
    fused_product,
    int8_handover,
    norm_input,
)
from rdrr_runtime.compile.patterns import GatedFeedForward, NormedLinears, Projections
from rdrr_runtime.compile.products import Family
from rdrr_runtime.phases import matvec, matvec_rows
from rdrr_runtime.phases.folding import Output


def serve_gated(build: PassBuilder, found: GatedFeedForward) -> int:
    """Emit norm, gate, up and activation with fused kernels; return the number of ops, or 0.

    The down projection is emitted as well if the activation can hand it over in int8.
    """
    weights = [build.matrix(one.weight) for one in found.linears]
    gated = fused_product(build, weights, gate=True)
    if gated is None:
        return 0
    down = _down_in_int8(build, found, gated)
    activation, source = found.activation, norm_input(build, found.norm)
    if down is None or found.down is None:
        y = build.values.allocate(activation.out, activation.width)
        output = Output((y,), "gate", activation=activation.activation)
        emit_product(build, gated, source, output, activation.out)
        build.values.mark_read(found.norm.x)
        return found.own_count
    handed = int8_handover(build, down)
    output = Output(
        (handed.x,), "gate", activation=activation.activation, int8=True, scales=handed.scales
    )
    (phase,) = emit_product(build, gated, source, output, activation.out)
    build.values.mark_read(found.norm.x)
    emit_branch(build, down, found.down, handed, phase.tuning_keys)
    return found.own_count + found.down.count


def _down_in_int8(build: PassBuilder, found: GatedFeedForward, gated: Served) -> Served | None:
    """Return the down projection if the activation can hand its output over in int8."""
    op = found.down.op if found.down is not None else None
    if not isinstance(op, Linear):
        return None
    down = fused_product(build, (build.matrix(op.weight),))
    if down is None or down.family is not gated.family or down.by_column or gated.by_column:
        return None
    if not (gated.int8 and down.int8):
        return None
    leaves = matvec.leaves_int8 if gated.family is Family.ONE_ROW else matvec_rows.leaves_int8
    return down if leaves(build.ctx, found.activation.width) else None


def serve_normed_linears(
    build: PassBuilder, found: NormedLinears, layer: Projections | None
) -> int:
    """Emit a norm and the linears that read it; return the number of ops, or 0.

    A small batch takes two launches; if the linears are the projections of a layer, its attention
    is emitted as well. With more rows the products run concurrently: the device needs no barrier
    between launches that do not read each other's output, so small products share it.
    """
    served = _small_batch_projections(build, found)
    if served is None:
        return _side_by_side(build, found)
    ys = tuple(build.values.allocate(one.out, one.weight.shape[0]) for one in found.linears)
    names = [found.linears[0].out, *(one.out.rpartition(".")[2] for one in found.linears[1:])]
    output = Output(ys, bias=build.joined_bias(found.linears))
    emit_product(build, served, norm_input(build, found.norm), output, "+".join(names))
    build.values.mark_read(found.norm.x)
    if layer is not None and serve_attention_after_projections(build, layer):
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
    served = fused_product(build, weights, separate_outputs=True, bias=has_bias)
    return served if served is not None and served.family is Family.SMALL_BATCH else None


def _side_by_side(build: PassBuilder, found: NormedLinears) -> int:
    """Emit a norm, then its linears, then the norms and ropes that stood between the linears.

    The norms and ropes change the products in place, so reordering them takes no further buffers.
    """
    if build.ctx.max_rows == 1 or len(found.linears) < 2:
        return 0
    for op in (found.norm, *found.linears, *found.others):
        lower_op(build, op)
    return found.count
