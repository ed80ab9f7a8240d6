"""Lowering of a gated feed-forward of one row as a single phase, its down projection included.

Each workgroup multiplies the gated pairs that it has computed by their columns of the down
projection and adds the products to a branch in fixed point, so no phase waits for all pairs. The
branch joins the residual stream where the next product reads the sum. Before it, the branch is
cleared by the feed-forward before, and that of the first one by the embedding.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import GatedActivation, Linear

from rdrr_runtime.compile.choice.products import Family
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.inputs import source_of
from rdrr_runtime.compile.lowering.products import Served, emit_product
from rdrr_runtime.compile.patterns.layers import Branch, GatedFeedForward
from rdrr_runtime.compile.patterns.residual import StreamSum, is_read_next, match_normed_sum
from rdrr_runtime.compile.patterns.rows import FeedForward
from rdrr_runtime.phases.products.down import results_bytes
from rdrr_runtime.phases.products.fusion import Down, Output
from rdrr_runtime.phases.products.matvec import refusal


def cleared_sums(build: PassBuilder, width: int) -> BufferSlice | None:
    """Begin the memory of branches in fixed point, and return that of the first.

    Args:
        build: The pass under construction.
        width: Elements of the residual stream.

    Returns:
        What the caller must clear; None if the pass has no feed-forward in a single phase.
    """
    count = sum(isinstance(op, GatedActivation) for op in build.body.ops)
    joins = build.model.may_fuse and build.model.preferences.joins_feed_forwards
    # Phases of one dispatch hand values over in less time than their additions to a branch take.
    if build.ctx.max_rows != 1 or not joins or not count or build.ctx.grid is not None:
        return None
    size = results_bytes(width)
    build.sums = build.workspace.named(f"down.{width}", (count + 1) * size)
    return build.sums.range(0, size)


def serve_whole(
    build: PassBuilder,
    gated: Served,
    pattern: GatedFeedForward | FeedForward,
) -> bool:
    """Emit a gated feed-forward in one phase if a kernel can serve it; return whether it could.

    Args:
        build: The pass under construction.
        gated: The product of gate and up.
        pattern: The feed-forward.
    """
    branch, activation, sums = pattern.down, pattern.activation, build.sums
    if branch is None or sums is None or not isinstance(activation, GatedActivation):
        return False
    op, stream_sum = branch.op, _sum_after(build, branch)
    if stream_sum is None or not isinstance(op, Linear) or op.bias is not None:
        return False
    weights, down = gated.product.weights, build.matrix(op.weight)
    size = results_bytes(down.n)
    if gated.family is not Family.ONE_ROW or 2 * size > sums.size:
        return False
    if refusal(build.ctx, weights, int8=gated.int8, gate=True, down=down) is not None:
        return False
    output = Output(
        (),
        "down",
        activation=activation.activation,
        clamp=activation.clamp,
        down=Down(down, sums.range(0, 2 * size)),
    )
    source, x = source_of(build, pattern.norm, pattern.linears[0].x, weights, output)
    emit_product(build, gated, source, output, op.out)
    build.mark_source_read(pattern.norm, x, len(pattern.linears))
    build.sums, build.fixed[stream_sum.branch] = (
        sums.range(size, sums.size - size),
        sums.range(0, size),
    )
    if stream_sum.norm is None:
        build.pending_sum = stream_sum
    return True


def _sum_after(build: PassBuilder, branch: Branch) -> StreamSum | None:
    """Return the sum that the output of a linear joins, if the next product may compute it."""
    body = build.body
    index = 1 + next(at for at, op in enumerate(body.ops) if op is branch.op)
    plain = None if branch.residual is None else StreamSum(None, branch.residual)
    stream_sum = plain or match_normed_sum(body, index)
    if stream_sum is None or stream_sum.branch != branch.op.out or body.readers[branch.op.out] != 1:
        return None
    return stream_sum if is_read_next(body, index, stream_sum) else None
