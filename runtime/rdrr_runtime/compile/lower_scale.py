"""Lowering of the multiplication by a constant and a weight."""

from __future__ import annotations

from rdrr_manifests.graph.ops import Scale

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.phases.copy import copy
from rdrr_runtime.phases.elementwise import gain, scale


def lower_scale(build: PassBuilder, op: Scale) -> None:
    """Emit the multiplication, in place unless another op still has to read the old value."""
    values, ctx = build.values, build.ctx
    x, width = values.get(op.x), values.live[op.x][0]
    if values.readers[op.x] > 1:
        y = values.allocate(op.out, width)
        build.emit(copy(x, y, label=op.out))
        values.mark_read(op.x)
        x = y
    else:
        values.rename(op.x, op.out)
    if op.weight is None:
        build.emit(scale(ctx, x, width=width, factor=op.factor, label=op.out))
        return
    count, weight = op.weight.shape[0], build.vector(op.weight)
    build.emit(gain(ctx, x, weight, width=width, count=count, factor=op.factor, label=op.out))
