"""Lowering of patterns for one row: attention and feed-forwards of more forms than for batches."""

from __future__ import annotations

from rdrr_manifests.graph.ops import Activation, Linear, Norm

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.lower_attention import serve_attention_block
from rdrr_runtime.compile.lower_layers import can_hand_over
from rdrr_runtime.compile.lower_ops import lower_op
from rdrr_runtime.compile.lower_products import (
    emit_branch,
    emit_product,
    fused_product,
    int8_handover,
    source_of,
)
from rdrr_runtime.compile.patterns import AttentionBlock
from rdrr_runtime.compile.patterns_rows import FeedForward, GatedInput, NormedProducts, may_defer
from rdrr_runtime.compile.values import parts_refusal
from rdrr_runtime.phases.fusion import Input, Output, OutputFactors

MOST_MATRICES = 3
"""Most matrices of a phase, which may also bind the weight and the bias of a norm, and biases."""


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
            bias=build.concatenated_bias(pattern.linears),
            activation=activation.activation,
            clamp=clamp,
        )
    (phase,) = emit_product(build, inner, source, output, activation.out)
    build.mark_source_read(pattern.norm, x, len(pattern.linears))
    emit_branch(build, down, branch, handed, phase.tuning_keys)
    return True


def serve_gated_input(build: PassBuilder, pattern: GatedInput) -> bool:
    """Emit a linear and the activation that gates another value in one phase, if possible."""
    linear, activation, values = pattern.linear, pattern.activation, build.values
    if build.ctx.max_rows != 1 or activation.up is None or linear.x in build.deferred:
        return False
    served = fused_product(build, (build.matrix(linear.weight),))
    if served is None:
        return False
    factors = OutputFactors(values.get(activation.up), activation.up_part * activation.width)
    y = values.allocate(activation.out, activation.width)
    output = Output(
        (y,),
        "activate",
        bias=build.concatenated_bias((linear,)),
        activation=activation.activation,
        factors=factors,
    )
    emit_product(build, served, Input(values.get(linear.x), name=linear.x), output, activation.out)
    values.mark_read(linear.x, activation.up)
    return True


def serve_normed_products(build: PassBuilder, pattern: NormedProducts) -> bool:
    """Emit a norm and all linears that read it in one phase, if possible.

    Their outputs lie side by side. The ops between the linears follow, which change nothing, since
    each works in place on the output of one linear.
    """
    linears, ctx = pattern.linears, build.ctx
    widths = {one.out: one.weight.shape[0] for one in linears}
    same_biases = len({one.bias is None for one in linears}) == 1
    if ctx.max_rows != 1 or not same_biases or len(linears) > MOST_MATRICES:
        return False
    if parts_refusal(widths.values(), ctx.value_bytes) is not None:
        return False
    served = fused_product(build, [build.matrix(one.weight) for one in linears])
    if served is None:
        return False
    y = build.values.allocate_parts(widths, ctx.value_bytes)
    output = Output((y,), bias=build.concatenated_bias(linears))
    source, x = source_of(build, pattern.norm, pattern.norm.out)
    emit_product(build, served, source, output, "+".join(widths))
    build.mark_source_read(pattern.norm, x, len(linears))
    for op in pattern.others:
        lower_op(build, op)
    return True


def _may_compute(build: PassBuilder, norm: Norm | None, readers: int) -> bool:
    """Return whether the norm before a pattern may be computed by each of its readers."""
    if norm is None or build.body.readers[norm.out] == readers:
        return True
    return may_defer(build.body, norm)
