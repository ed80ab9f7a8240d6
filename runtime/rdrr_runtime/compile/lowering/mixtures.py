"""Lowering of a mixture of experts for one row, with the norm before it and the residual after it.

The norm is computed by each phase that reads it, the score of the shared expert is one more output
of the router, and both the routed experts and the shared one add to the residual stream.
"""

from __future__ import annotations

from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_manifests.graph.ops import SigmoidGate

from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.experts import emit_experts, emit_routes
from rdrr_runtime.compile.lowering.inputs import normed
from rdrr_runtime.compile.lowering.products import (
    Served,
    emit_product,
    fused_product,
    int8_gate,
)
from rdrr_runtime.compile.patterns.mixtures import Mixture, SharedExpert
from rdrr_runtime.phases.products.fusion import Input, Output, OutputScore
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, Part


def serve_mixture(build: PassBuilder, pattern: Mixture) -> int:
    """Emit a mixture of experts from its norm to the residual with fused kernels.

    Returns:
        The number of ops; 0 if this is not possible, and then nothing has been emitted.
    """
    if build.ctx.values != "f32":  # logits must not be rounded to f16
        return 0
    shared, router = pattern.shared, pattern.router
    score = None if shared is None else shared.score
    if score is not None and router.bias is not None:
        return 0
    matrices = [build.matrix(router.weight), *_score_row(build, score)]
    logits = fused_product(build, matrices, exact=True)
    inner = None if shared is None else _shared_products(build, shared)
    if logits is None or (shared is not None and inner is None):
        return 0
    scores = build.workspace.named("router.scored", 4 * sum(matrix.n for matrix in matrices))
    stream = build.values.get(pattern.norm.x)
    source = normed(build, pattern.norm, stream)
    bias = None if router.bias is None else build.vector(router.bias)
    emit_product(build, logits, source, Output((scores,), bias=bias), router.out)
    handed = None
    if shared is not None and inner is not None:
        handed = _emit_inner(build, shared, *inner, source)
    emit_routes(build, router, scores)
    emit_experts(build, pattern.experts, source, stream, accumulate=True)
    if shared is not None and inner is not None and handed is not None:
        scored = None if score is None else OutputScore(scores, router.experts)
        output = Output((stream,), "add", score=scored)
        emit_product(build, inner[1], handed, output, shared.out)
    build.values.mark_read(pattern.norm.x)
    build.values.rename(pattern.norm.x, pattern.residual.out)
    return pattern.count


def _score_row(build: PassBuilder, score: SigmoidGate | None) -> list[GpuWeight]:
    """Return the weight of the shared expert's score as a matrix with one row, if there is one."""
    if score is None:
        return []
    k, vector = score.weight.shape[1], build.vector(score.weight)
    part = Part(vector, 0, 1)
    return [GpuWeight(DTYPES["F32"], Layout.ROW, 1, k, k // 4, 1, (part,))]


def _shared_products(build: PassBuilder, shared: SharedExpert) -> tuple[Served, Served] | None:
    """Return the products of the shared expert, gate and up in one; None if they are not served."""
    gated = fused_product(
        build, [build.matrix(linear.weight) for linear in shared.linears], gate=True
    )
    down = fused_product(build, (build.matrix(shared.down.weight),))
    return None if gated is None or down is None else (gated, down)


def _emit_inner(
    build: PassBuilder, shared: SharedExpert, gated: Served, down: Served, source: Input
) -> Input:
    """Emit gate, up and activation of the shared expert; return the input of its down."""
    activation = shared.activation
    quantized = int8_gate(build, gated, down, activation)
    if quantized is not None:
        output, handed = quantized
    else:
        size = build.ctx.value_bytes * activation.width
        handed = Input(build.workspace.named("shared expert", size), name=activation.out)
        output = Output(
            (handed.x,), "gate", activation=activation.activation, clamp=activation.clamp
        )
    emit_product(build, gated, source, output, activation.out)
    return handed
