"""Lowering of the multiplication by a constant and a weight."""

from __future__ import annotations

from rdrr_manifests.graph.ops import Scale

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.phases.elementwise import gain, scale


def lower_scale(build: PassBuilder, op: Scale) -> None:
    """Emit the multiplication, in place unless another op still has to read the old value."""
    ctx, (x, width) = build.ctx, build.changed(op.x, op.out)
    if op.weight is None:
        build.emit(scale(ctx, x, width=width, factor=op.factor, label=op.out))
        return
    count, weight = op.weight.shape[0], build.vector(op.weight)
    build.emit(gain(ctx, x, weight, width=width, count=count, factor=op.factor, label=op.out))
