"""Routing of token rows to experts in a mixture of experts (MoE), and the sum of their results.

`router_topk` selects the routes of each row, see `rdrr_runtime.phases.routes`.

    expert_groups     list the routes of each expert
    expert_combine    y[r, :] = sum_s w[r, s] (inner[r, s, :] (+ b[e])), where w is the routing
                      weight and b[e] the bias of the expert
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.routes import Routed, need_routes
from rdrr_runtime.phases.weights.checks import need_rows
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class ExpertGroups(Record):
    """Parameters of expert_groups.wgsl.

    Attributes:
        top_k: Routes of a row.
        max_rows: Most token rows of a pass.
    """

    shader = "experts/expert_groups"

    top_k: int
    max_rows: int


@dataclass(frozen=True, kw_only=True)
class ExpertCombine(Record):
    """Parameters of expert_combine.wgsl.

    Attributes:
        n: Elements of a row of y.
        top_k: Routes of a row.
        accumulate: Whether to add to y.
        bias: Whether each expert has a bias.
        scaled: Whether routing weights have multiplied the inputs of experts already.
    """

    shader = "experts/expert_combine"

    value: str = choice()
    bias: bool = choice(default=False)
    scaled: bool = choice(default=False)
    n: int
    top_k: int
    accumulate: bool


def expert_outputs(weight: GpuWeight, routed: Routed, label: str) -> int:
    """Return the outputs N of each expert in a stack [experts * N, K].

    Raises:
        FormatError: The kernels do not support the sizes, or the matrix holds unquantized values
            in column-major order.
    """
    need_rows(weight, label)
    need_multiple(f"{label}: all experts", weight.n, routed.experts)
    need_multiple(f"{label}: K", weight.k, 4)
    return weight.n // routed.experts


def groups_bytes(ctx: OpContext, experts: int) -> int:
    """Return the bytes of the buffer that `expert_groups` writes, u32 [experts, 1 + max_rows]."""
    return 4 * experts * (1 + ctx.max_rows)


def expert_groups(
    ctx: OpContext, routed: Routed, groups: BufferSlice, *, label: str
) -> list[Phase]:
    """List the routes of each expert.

    Args:
        ctx: Lowering context.
        routed: Routes of the pass.
        groups: u32 [experts, 1 + max_rows], the result: for each expert the number of its routes,
            then the routes.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: A buffer is too small.
    """
    need_routes(ctx, routed, label)
    need_floats(f"{label}: groups", groups, groups_bytes(ctx, routed.experts) // 4)
    record = ExpertGroups(threads=THREADS, top_k=routed.top_k, max_rows=ctx.max_rows)
    buffers = {"current": ctx.state.step, "routes": routed.routes, "groups": groups}
    return [Phase(record, buffers, Work(routed.experts), label)]


def expert_combine(
    ctx: OpContext,
    routed: Routed,
    inner: BufferSlice,
    y: BufferSlice,
    *,
    width: int,
    bias: BufferSlice | None = None,
    accumulate: bool = False,
    label: str,
) -> list[Phase]:
    """Sum the results of each row's experts, weighted by their routing weights.

    Args:
        ctx: Lowering context.
        routed: Routes of the pass.
        inner: [rows, top_k, width].
        y: [rows, width]; not the same buffer as inner.
        width: Elements of a row, a multiple of 4.
        bias: Bias of each expert, f32 [experts, width], or None.
        accumulate: Add to y instead of replacing it.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    need_multiple(f"{label}: width", width, 4)
    need_routes(ctx, routed, label)
    ctx.need_values(f"{label}: inner", inner, ctx.max_rows * routed.top_k * width)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * width)
    record = ExpertCombine(
        threads=THREADS,
        value=ctx.values,
        bias=bias is not None,
        scaled=routed.scales_inputs,
        n=width,
        top_k=routed.top_k,
        accumulate=accumulate,
    )
    buffers = {"routes": routed.routes, "inner": inner, "y": y}
    if bias is not None:
        need_floats(f"{label}: bias", bias, routed.experts * width)
        buffers["bias"] = bias
    return [Phase(record, buffers, Work(-(-width // (4 * THREADS)), rows=1), label)]
