"""Lowering of patterns for one row: attention and feed-forwards of more forms than for batches."""

from __future__ import annotations

from rdrr_manifests.graph.ops import Activation, Linear, Norm

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.lower_attention import serve_attention_block
from rdrr_runtime.compile.lower_layers import can_hand_over
from rdrr_runtime.compile.lower_products import (
    emit_branch,
    emit_product,
    fused_product,
    int8_handover,
    source_of,
)
from rdrr_runtime.compile.patterns import AttentionBlock
from rdrr_runtime.compile.patterns_rows import FeedForward, may_defer
from rdrr_runtime.phases.fusion import Input, Output


def serve_row_attention(build: PassBuilder, pattern: AttentionBlock) -> bool:
    """Emit an attention block for one row, if possible; its norm may be read again later."""
    norm, linears = pattern.projections.norm, pattern.projections.linears
    if build.ctx.max_rows != 1 or not _may_compute(build, norm, len(linears)):
        return False
    return serve_attention_block(build, pattern)


def serve_row_feed_forward(build: PassBuilder, pattern: FeedForward) -> bool:
    """Emit a feed-forward for one row in two phases, if possible; likewise."""
    activation, branch = pattern.activation, pattern.down
    assert isinstance(branch.op, Linear), "the pattern ends with a linear"
    if build.ctx.max_rows != 1 or not _may_compute(build, pattern.norm, len(pattern.linears)):
        return False
    gate = not isinstance(activation, Activation)
    weights = [build.matrix(one.weight) for one in pattern.linears]
    inner = fused_product(build, weights, gate=gate)
    down = fused_product(build, (build.matrix(branch.op.weight),))
    if inner is None or down is None:
        return False
    source, x = source_of(build, pattern.norm, pattern.linears[0].x)
    width = activation.width
    clamp = None if isinstance(activation, Activation) else activation.clamp
    if gate and can_hand_over(build, inner, down, width):
        handed = int8_handover(build, down)
        output = Output(
            (handed.x,),
            "gate",
            activation=activation.activation,
            clamp=clamp,
            int8=True,
            scales=handed.scales,
        )
    else:
        size = build.ctx.value_bytes * width
        handed = Input(build.workspace.named(f"inner.{width}", size), name=activation.out)
        output = Output(
            (handed.x,),
            "gate" if gate else "activate",
            bias=build.joined_bias(pattern.linears),
            activation=activation.activation,
            clamp=clamp,
        )
    (phase,) = emit_product(build, inner, source, output, activation.out)
    build.mark_source_read(pattern.norm, x, len(pattern.linears))
    emit_branch(build, down, branch, handed, phase.tuning_keys)
    return True


def _may_compute(build: PassBuilder, norm: Norm | None, readers: int) -> bool:
    """Return whether the norm before a pattern may be computed by each of its readers."""
    if norm is None or build.body.readers[norm.out] == readers:
        return True
    return may_defer(build.body, norm)
