"""Lowering of patterns for one row: attention and feed-forwards of more forms than for batches.

Each function emits a pattern and returns its number of ops, or emits nothing and returns 0.
"""

from __future__ import annotations

from rdrr_manifests.graph.ops import GatedActivation, Linear

from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.down import serve_whole
from rdrr_runtime.compile.lowering.inputs import source_of
from rdrr_runtime.compile.lowering.ops import lower_op
from rdrr_runtime.compile.lowering.products import (
    emit_branch,
    emit_product,
    fused_product,
    int8_gate,
)
from rdrr_runtime.compile.lowering.values import parts_refusal
from rdrr_runtime.compile.patterns.layers import NormedLinears, may_compute
from rdrr_runtime.compile.patterns.rows import FeedForward, GatedInput
from rdrr_runtime.phases.products.fusion import Input, Output, OutputFactors

MOST_MATRICES = 3
"""Most matrices of a phase, which may also bind the weight and the bias of a norm, and biases."""


def serve_row_feed_forward(build: PassBuilder, pattern: FeedForward) -> int:
    """Emit a feed-forward in two phases; its norm may be read again later."""
    activation, branch = pattern.activation, pattern.down
    assert isinstance(branch.op, Linear), "the pattern ends with a linear"
    if not may_compute(build.body, pattern.norm, len(pattern.linears)):
        return 0
    gate = isinstance(activation, GatedActivation)
    weights = [build.matrix(linear.weight) for linear in pattern.linears]
    inner = fused_product(build, weights, gate=gate)
    down = fused_product(build, (build.matrix(branch.op.weight),))
    if inner is None or down is None:
        return 0
    if serve_whole(build, inner, pattern):
        return pattern.count
    width = activation.width
    clamp, quantized = None, None
    if isinstance(activation, GatedActivation):
        clamp, quantized = activation.clamp, int8_gate(build, inner, down, activation)
    if quantized is not None:
        output, handed = quantized
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
    source, x = source_of(build, pattern.norm, pattern.linears[0].x, weights, output)
    (*_, phase) = emit_product(build, inner, source, output, activation.out)
    build.mark_source_read(pattern.norm, x, len(pattern.linears))
    emit_branch(build, down, branch, handed, phase.tuning_keys)
    return pattern.count


def serve_gated_input(build: PassBuilder, pattern: GatedInput) -> int:
    """Emit a linear and the activation that gates another value in one phase."""
    linear, activation, values = pattern.linear, pattern.activation, build.values
    if activation.up is None or linear.x in build.deferred:
        return 0
    served = fused_product(build, (build.matrix(linear.weight),))
    if served is None:
        return 0
    factors = OutputFactors(values.get(activation.up), activation.up_part * activation.width)
    y = values.allocate(activation.out, activation.width)
    output = Output(
        (y,),
        "activate",
        bias=build.concatenated_bias((linear,)),
        activation=activation.activation,
        factors=factors,
    )
    source, _ = source_of(build, None, linear.x, served.product.weights, output)
    emit_product(build, served, source, output, activation.out)
    values.mark_read(linear.x, activation.up)
    return 2


def serve_normed_products(build: PassBuilder, pattern: NormedLinears) -> int:
    """Emit a norm and all linears that read it in one phase.

    Their outputs lie side by side. The ops between the linears follow, which change nothing, since
    each works in place on the output of one linear.
    """
    linears, size = pattern.linears, build.ctx.value_bytes
    widths = {linear.out: linear.weight.shape[0] for linear in linears}
    same_biases = len({linear.bias is None for linear in linears}) == 1
    if not same_biases or len(linears) > MOST_MATRICES:
        return 0
    if parts_refusal(widths.values(), size) is not None:
        return 0
    served = fused_product(build, [build.matrix(linear.weight) for linear in linears])
    if served is None:
        return 0
    y = build.values.allocate_parts(widths, size)
    output = Output((y,), bias=build.concatenated_bias(linears))
    weights = served.product.weights
    source, x = source_of(build, pattern.norm, pattern.norm.out, weights, output)
    emit_product(build, served, source, output, "+".join(widths))
    build.mark_source_read(pattern.norm, x, len(linears))
    for op in pattern.others:
        lower_op(build, op)
    return pattern.count
