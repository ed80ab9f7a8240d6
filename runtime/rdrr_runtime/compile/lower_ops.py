"""Single ops as launches, with the residual after them where they can add to it in place."""

from __future__ import annotations

from typing import assert_never

from rdrr_manifests.graph.ops import (
    Attention,
    Embed,
    Experts,
    GatedActivation,
    Head,
    Linear,
    Norm,
    Op,
    Residual,
    Rope,
    Router,
    SigmoidGate,
)

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.lower_attention import lower_attention
from rdrr_runtime.compile.lower_experts import lower_experts, lower_router, lower_sigmoid_gate
from rdrr_runtime.compile.lower_products import lower_linear
from rdrr_runtime.compile.patterns import Branch
from rdrr_runtime.phases.elementwise import residual_add, scale
from rdrr_runtime.phases.embed import embed
from rdrr_runtime.phases.gated_activation import gated_activation
from rdrr_runtime.phases.rmsnorm import post_norm_add, rms_norm, rms_norm_in_place
from rdrr_runtime.phases.rope import rope


def lower_branch(build: PassBuilder, branch: Branch) -> None:
    """Emit a linear, a norm or a mixture of experts, and the residual that it is added to."""
    op, residual = branch.op, branch.residual
    if isinstance(op, Linear):
        lower_linear(build, branch)
    elif isinstance(op, Experts):
        _experts(build, op, residual)
    elif residual is None:
        _norm(build, op)
    else:
        _post_norm(build, op, residual)


def lower_op(build: PassBuilder, op: Op) -> None:
    """Emit one op by itself."""
    match op:
        case Linear() | Norm() | Experts():
            lower_branch(build, Branch(op))
        case Embed():
            out = build.values.take(op.out, op.weight.shape[1])
            table = build.matrix(op.weight)
            build.emit(embed(build.ctx, table, out, scale=op.scale, label="embed"))
        case Rope():
            _rope(build, op)
        case Attention():
            lower_attention(build, op)
        case GatedActivation():
            _activation(build, op)
        case Router():
            build.routed[op.out] = lower_router(build, op)
        case SigmoidGate():
            lower_sigmoid_gate(build, op)
        case Residual():
            _residual(build, op)
        case Head():
            raise AssertionError("the head ends the graph")
        case _:
            assert_never(op)


def _experts(build: PassBuilder, op: Experts, residual: Residual | None) -> None:
    values = build.values
    width = op.downs[0].shape[0]
    out = values.take(op.out, width) if residual is None else values.get(residual.x)
    lower_experts(build, op, build.routed[op.router], out, accumulate=residual is not None)
    values.read(op.x)
    if residual is not None:
        values.rename(residual.x, residual.out)


def _norm(build: PassBuilder, op: Norm) -> None:
    x, values = build.values.get(op.x), build.values
    gain, eps, offset = build.gain(op)
    if op.groups > 1 and values.readers[op.x] == 1:
        made = rms_norm_in_place(
            build.ctx,
            x,
            gain,
            width=op.width,
            eps=eps,
            offset=offset,
            per_row=op.groups,
            label=op.out,
        )
        build.emit(made)
        values.rename(op.x, op.out)
        return
    made = rms_norm(
        build.ctx,
        x,
        gain,
        values.take(op.out, op.width * op.groups),
        width=op.width,
        eps=eps,
        offset=offset,
        per_row=op.groups,
        label=op.out,
    )
    build.emit(made)
    values.read(op.x)


def _post_norm(build: PassBuilder, op: Norm, residual: Residual) -> None:
    gain, eps, offset = build.gain(op)
    made = post_norm_add(
        build.ctx,
        build.values.get(residual.x),
        build.values.get(op.x),
        gain,
        width=op.width,
        eps=eps,
        offset=offset,
        label=f"{op.out}+residual",
    )
    build.emit(made)
    build.values.read(op.x)
    build.values.rename(residual.x, residual.out)


def _rope(build: PassBuilder, op: Rope) -> None:
    spec = build.model.graph.ropes[op.table]
    made = rope(
        build.ctx,
        build.values.get(op.x),
        build.model.ropes[op.table],
        heads=op.heads,
        head_dim=spec.head_dim,
        rotary_dim=spec.rotary_dim,
        label=op.out,
    )
    build.emit(made)
    build.values.rename(op.x, op.out)


def _activation(build: PassBuilder, op: GatedActivation) -> None:
    values = build.values
    out = values.take(op.out, op.width)
    made = gated_activation(
        build.ctx,
        values.get(op.gate),
        None if op.up is None else values.get(op.up),
        out,
        width=op.width,
        activation=op.activation,
        label=op.out,
    )
    build.emit(made)
    values.read(op.gate, op.up)


def _residual(build: PassBuilder, op: Residual) -> None:
    values = build.values
    width = values.held[op.x][0]
    branch = values.get(op.branch)
    if op.scale != 1.0:
        build.emit(scale(build.ctx, branch, width=width, factor=op.scale, label=op.out))
    build.emit(residual_add(build.ctx, values.get(op.x), branch, width=width, label=op.out))
    values.read(op.branch)
    values.rename(op.x, op.out)
