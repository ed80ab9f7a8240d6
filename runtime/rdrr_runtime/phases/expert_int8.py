"""Products of a few token rows with the experts that they were routed to, in int8.

expert_gate     y[r, s, :] = act(W_gate[e] x[r, :]) W_up[e] x[r, :]
expert_down     y[r, :] = sum_s w W[e] x[r, s, :], w the weight of row r's s-th route

A route reads its expert's weights by itself, as in `expert_linear`, and x comes from `int8_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.formats import GpuFormat, Planes
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.int8_rows import int8_rows_bytes, units_of
from rdrr_runtime.phases.matmul_int8 import TYPES
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.routing import Routed, expert_outputs, need_routes

WORKGROUP = 128
TEAM = 32
"""Threads that share an output; fast where it is the size of a subgroup."""


@dataclass(frozen=True, kw_only=True)
class ExpertInt8(Record):
    """Parameters of expert_int8.wgsl.

    Attributes:
        formats: How the matrices lie in their buffers.
        act: Activation of the gate; empty for the sum over a row's routes.
        subgroups: Whether sums go through subgroup operations.
        t: Threads that share an output.
        n: Outputs of an expert.
        units: Groups of 64 inputs of an expert.
        experts: Experts in a matrix.
        top_k: Routes of a row.
        accumulate: Whether to add to y.
        planes: Where each matrix has its planes.
    """

    shader = "expert_int8"
    trusted = True

    formats: tuple[GpuFormat, ...] = choice()
    act: str = choice()
    subgroups: bool = choice()
    t: int
    n: int
    units: int
    experts: int
    top_k: int
    accumulate: bool
    planes: tuple[Planes, ...]


def refusal(ctx: OpContext, stacks: Sequence[GpuWeight]) -> str | None:
    """Return why the experts of a mixture cannot be multiplied in int8; None if they can."""
    for one in stacks:
        if one.dtype.name not in TYPES:
            return f"its experts are single values of {one.dtype.name}, no blocks"
        if one.by_column:
            return f"the blocks of its experts in {one.dtype.name} lie along N, not along K"
        if len(one.parts) > 1:
            return (
                f"its experts are split into {len(one.parts)} buffers, because their "
                f"{one.size} bytes exceed the binding limit"
            )
    if ctx.values != "f32":
        return f"its activations are {ctx.values}, and int8 experts leave f32"
    return None


def expert_gate(
    ctx: OpContext,
    gates: GpuWeight,
    ups: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    activation: str,
    label: str,
) -> list[Phase]:
    """Compute gate, up and activation of each route; there must be no `refusal`.

    Args:
        ctx: Where it is lowered to.
        gates: [experts * N, K], blocks along K.
        ups: The same.
        routed: Where each row goes.
        x: [rows, K] as `int8_rows` leaves it.
        y: f32 [rows, top_k, N].
        activation: `silu` or `gelu_tanh`.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    need_floats(f"{label}: x", x, int8_rows_bytes(ctx.max_rows, gates.k) // 4)
    outputs = routed.top_k * expert_outputs(gates, routed, label)
    need_floats(f"{label}: y", y, ctx.max_rows * outputs)
    return [_phase(ctx, (gates, ups), routed, x, y, label, activation=activation)]


def expert_down(
    ctx: OpContext,
    downs: GpuWeight,
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    *,
    accumulate: bool = False,
    label: str,
) -> list[Phase]:
    """Sum the results of a row's experts, each times its weight; there must be no `refusal`.

    Args:
        ctx: Where it is lowered to.
        downs: [experts * N, K], blocks along K.
        routed: Where each row goes.
        x: [rows, top_k, K] as `int8_rows` leaves it.
        y: f32 [rows, N].
        accumulate: Add to y instead of replacing it.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    need_floats(f"{label}: x", x, int8_rows_bytes(ctx.max_rows * routed.top_k, downs.k) // 4)
    need_floats(f"{label}: y", y, ctx.max_rows * expert_outputs(downs, routed, label))
    return [_phase(ctx, (downs,), routed, x, y, label, accumulate=accumulate)]


def _phase(
    ctx: OpContext,
    stacks: tuple[GpuWeight, ...],
    routed: Routed,
    x: BufferSlice,
    y: BufferSlice,
    label: str,
    *,
    activation: str = "",
    accumulate: bool = False,
) -> Phase:
    need_routes(ctx, routed, label)
    outputs = expert_outputs(stacks[0], routed, label)
    types = ",".join(one.dtype.name.lower() for one in stacks)
    record = ExpertInt8(
        threads=min(WORKGROUP, ctx.max_threads),
        variant=f"{'gate' if activation else 'down'}.{types}",
        formats=tuple(one.form for one in stacks),
        act=activation,
        subgroups=ctx.subgroups,
        t=TEAM,
        n=outputs,
        units=units_of(stacks[0].k),
        experts=routed.experts,
        top_k=routed.top_k,
        accumulate=accumulate,
        planes=tuple(one.places(one.parts[0]) for one in stacks),
    )
    buffers = {"routes": routed.routes, "x": x, "y": y}
    buffers |= {f"weight{index}": one.parts[0].slice for index, one in enumerate(stacks)}
    items = -(-outputs // (record.threads // TEAM))
    work = Work(items * routed.top_k if activation else items, rows=1)
    return Phase(record, buffers, work, label)
