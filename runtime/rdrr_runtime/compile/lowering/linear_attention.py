"""Lowering of a layer's linear attention for one row, in three phases.

They are the norm with all four projections; convolution, gates and delta rule; and the norm of the
heads with their gates and the output projection.
"""

from __future__ import annotations

from rdrr_manifests.graph.ops import Linear

from rdrr_runtime.compile.choice.decision import Reason
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.inputs import norm_input
from rdrr_runtime.compile.lowering.products import (
    emit_branch,
    emit_product,
    fused_product,
)
from rdrr_runtime.compile.patterns.linear_attention import LinearAttention
from rdrr_runtime.phases.products.fusion import GatedNorm, HeadGates, Input, Output
from rdrr_runtime.phases.states.delta_rule import DeltaSpec
from rdrr_runtime.phases.states.delta_step import StepOperands, StepSpec, delta_step, refusal

FUSED = Reason("convolution, gates and delta rule in one phase (auto)")


def serve_linear_attention(build: PassBuilder, pattern: LinearAttention) -> int:
    """Emit linear attention from its norm to its output projection with fused kernels.

    Returns:
        The number of ops; 0 if this is not possible, and then nothing has been emitted.
    """
    output = pattern.output.op
    assert isinstance(output, Linear), "the pattern's output is a linear"
    if any(linear.bias is not None for linear in pattern.linears):
        return 0
    spec = _spec(pattern)
    projected = fused_product(build, [build.matrix(linear.weight) for linear in pattern.linears])
    out = fused_product(build, (build.matrix(output.weight),))
    if projected is None or out is None or refusal(build.ctx, spec) is not None:
        return 0
    ctx, rule, states = build.ctx, pattern.rule, build.cache.states.buffers
    named, label = build.workspace.named, pattern.rule.out
    row = named("linear attention projected", ctx.value_bytes * spec.stride)
    y = named("linear attention y", ctx.value_bytes * spec.delta.outputs)
    squares = named("linear attention squares", 4 * rule.heads * spec.blocks)
    norm, output_row = pattern.norm, Output((row,))
    source = norm_input(build, norm, projected.product.weights, output_row)
    emit_product(build, projected, source, output_row, f"{label}.projections")
    build.values.mark_read(norm.x)
    vectors = (pattern.convolution.weight, rule.rate, rule.decay_bias)
    operands = StepOperands(
        projected=row,
        taps=build.model.weights.concatenated([vector.name for vector in vectors]),
        recent=states[pattern.convolution.state],
        state=states[rule.state],
        y=y,
        squares=squares,
    )
    build.emit(delta_step(ctx, operands, spec=spec, label=label), FUSED)
    gain, eps, offset = build.gain(pattern.head_norm)
    gates = HeadGates(row, "silu", rule.value_dim, spec.delta.inputs)
    before = GatedNorm(squares, spec.blocks, rule.value_dim, gain, eps, gates, offset)
    emit_branch(build, out, pattern.output, Input(y, before, name=label))
    return pattern.count


def _spec(pattern: LinearAttention) -> StepSpec:
    """Return the sizes of the step; a row holds the outputs of the linears in their order."""
    rule = pattern.rule
    widths = [linear.weight.shape[0] for linear in pattern.linears]
    strength = sum(widths[:2])
    return StepSpec(
        DeltaSpec(rule.heads, rule.key_heads, rule.key_dim, rule.value_dim, rule.eps),
        pattern.convolution.kernel,
        stride=sum(widths),
        strength=strength,
        decay=strength + widths[2],
    )
