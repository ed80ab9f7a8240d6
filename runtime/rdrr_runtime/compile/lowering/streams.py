"""Lowering of the ops on parallel residual streams, and of sparse activations."""

from __future__ import annotations

from rdrr_manifests.graph.ops import AppendStream, CombineStreams, Sparsify, StreamCoefficients

from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.phases.rows.sparsify import sparsify
from rdrr_runtime.phases.streams.append_stream import append_stream
from rdrr_runtime.phases.streams.stream_coefficients import stream_coefficients
from rdrr_runtime.phases.streams.streams import streams


def lower_sparsify(build: PassBuilder, op: Sparsify) -> None:
    """Emit a cutoff, in place unless another op still has to read the old value."""
    x, width = build.changed(op.x, op.out)
    build.emit(sparsify(build.ctx, x, width=width, multiplier=op.multiplier, label=op.out))


def lower_append_stream(build: PassBuilder, op: AppendStream) -> None:
    """Emit the copy of the streams with one more at the end."""
    values = build.values
    before, width = values.live[op.x][0], values.live[op.y][0]
    z = values.allocate(op.out, before + width)
    phases = append_stream(
        build.ctx,
        values.get(op.x),
        values.get(op.y),
        z,
        width=width,
        before=before // width,
        floor=op.floor,
        label=op.out,
    )
    build.emit(phases)
    values.mark_read(op.x, op.y)


def lower_stream_coefficients(build: PassBuilder, op: StreamCoefficients) -> None:
    """Emit the coefficients of a row's streams."""
    values, (count, k), outputs = build.values, op.router.shape, op.weight.shape[0]
    phases = stream_coefficients(
        build.ctx,
        values.get(op.x),
        (build.vector(op.router), build.vector(op.weight)),
        values.allocate(op.out, outputs),
        sizes=(k, count, outputs),
        factor=op.factor,
        label=op.out,
    )
    build.emit(phases)
    values.mark_read(op.x)


def lower_combination(build: PassBuilder, op: CombineStreams) -> None:
    """Emit the mixture, correction, change or mean of a row's streams."""
    values, whole = build.values, build.values.live[op.x][0]
    width = whole // op.count
    phases = streams(
        build.ctx,
        values.get(op.x),
        values.allocate(op.out, width if op.form == "mean" else whole),
        mode=op.form,
        count=op.count,
        width=width,
        stream=op.stream,
        coefficients=None if op.coefficients is None else values.get(op.coefficients),
        update=None if op.update is None else values.get(op.update),
        label=op.out,
    )
    build.emit(phases)
    values.mark_read(op.x, op.update, op.coefficients)
