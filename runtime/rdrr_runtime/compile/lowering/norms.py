"""Lowering of single norms, and of the sums of the residual stream and a branch.

Sums come here unless a product computes them as it reads its input.
"""

from __future__ import annotations

from dataclasses import replace

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Norm, Residual

from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.patterns.residual import StreamSum
from rdrr_runtime.phases.norms.norm import NormForm, add_normalized, normalize, normalize_in_place
from rdrr_runtime.phases.rows.elementwise import converted, residual_add


def lower_norm(build: PassBuilder, op: Norm, residual: Residual | None = None) -> None:
    """Emit a norm, added to the residual stream if one follows."""
    values, x = build.values, build.values.get(op.x)
    if residual is not None:
        stream = build.target(op.out, op.width, residual)
        build.emit(
            add_normalized(build.ctx, stream, x, _form(build, op), label=f"{op.out}+residual")
        )
    elif op.groups > 1 and values.readers[op.x] == 1:
        build.emit(normalize_in_place(build.ctx, x, _form(build, op), label=op.out))
        values.rename(op.x, op.out)
    else:
        y = values.allocate(op.out, op.width * op.groups)
        emit_norm(build, op, x, y, label=op.out)
    values.mark_read(op.x)


def lower_sum(build: PassBuilder, stream_sum: StreamSum) -> None:
    """Emit the sum of the stream and a branch, with its norm and its scale in the same phase."""
    op, scale = stream_sum.norm, stream_sum.scale
    _settle_fixed(build, stream_sum)
    if op is None:
        lower_residual(build, stream_sum.residual)
        return
    if scale is None:
        lower_norm(build, op, stream_sum.residual)
        return
    assert scale.weight is not None, "the pattern's scale has a weight"
    x, stream = build.values.get(op.x), build.target(op.out, op.width, stream_sum.residual)
    form = replace(_form(build, op), scale=(build.vector(scale.weight), scale.factor))
    build.emit(add_normalized(build.ctx, stream, x, form, label=f"{op.out}+residual"))
    build.values.mark_read(op.x)
    build.values.rename(scale.x, scale.out)


def settle_sum(build: PassBuilder) -> None:
    """Emit the deferred sum, if there is one, because the phases that follow do not compute it."""
    pending, build.pending_sum = build.pending_sum, None
    if pending is not None:
        lower_sum(build, pending)


def _settle_fixed(build: PassBuilder, stream_sum: StreamSum) -> None:
    """Emit the conversion of a branch that a phase has left in fixed point."""
    fixed = build.fixed.pop(stream_sum.branch, None)
    if fixed is not None:
        width, *_ = build.values.live[stream_sum.residual.x]
        y = build.values.allocate(stream_sum.branch, width)
        build.emit(converted(build.ctx, y, fixed, width=width, label=stream_sum.branch))


def lower_residual(build: PassBuilder, op: Residual) -> None:
    """Emit the sum of the stream and a branch, in the buffer of the stream."""
    values = build.values
    width = values.live[op.x][0]
    x, branch = values.get(op.x), values.get(op.branch)
    build.emit(residual_add(build.ctx, x, branch, width=width, factor=op.scale, label=op.out))
    values.mark_read(op.branch)
    values.rename(op.x, op.out)


def emit_norm(
    build: PassBuilder,
    op: Norm,
    x: BufferSlice,
    y: BufferSlice,
    *,
    single_row: bool = False,
    label: str,
) -> None:
    """Emit a norm of x into y; with `single_row` both have one row, whatever the pass has."""
    form = _form(build, op)
    build.emit(normalize(build.ctx, x, y, form, single_row=single_row, label=label))


def _form(build: PassBuilder, op: Norm) -> NormForm:
    return NormForm(
        width=op.width,
        eps=op.eps,
        per_row=op.groups,
        centred=op.centred,
        weight=None if op.weight is None else build.vector(op.weight),
        bias=None if op.bias is None else build.vector(op.bias),
        offset=float(op.unit_offset),
        per_vector=op.weight is not None and op.weight.shape != (op.width,),
    )
