"""Routing of token rows to experts: which experts a row goes to, and how their results are joined.

router_topk       the experts of each row, and their routing weights
expert_groups     the routes of each expert
expert_combine    y[r, :] = sum_s w inner[r, s, :], w the weight of row r's s-th route
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.weight_checks import need_rows, power_of_two

ROUTE_WORDS = 2
"""32-bit words of a route: the expert's number and its routing weight."""

THREADS = 64


@dataclass(frozen=True)
class Routed:
    """Where each row goes.

    Attributes:
        routes: (u32 expert, f32 weight) [rows, top_k].
        experts: Experts in a stacked matrix.
        top_k: Routes of a row.
    """

    routes: BufferSlice
    experts: int
    top_k: int


@dataclass(frozen=True, kw_only=True)
class RouterTopK(Record):
    """Parameters of router_topk.wgsl.

    Attributes:
        normalize: Whether the weights of a row's experts sum to one.
        experts: Experts to choose from.
        top_k: Experts of a row.
    """

    shader = "router_topk"

    normalize: bool = choice()
    experts: int
    top_k: int


@dataclass(frozen=True, kw_only=True)
class ExpertGroups(Record):
    """Parameters of expert_groups.wgsl.

    Attributes:
        top_k: Routes of a row.
        max_rows: Most token rows of a pass.
    """

    shader = "expert_groups"

    top_k: int
    max_rows: int


@dataclass(frozen=True, kw_only=True)
class ExpertCombine(Record):
    """Parameters of expert_combine.wgsl.

    Attributes:
        value: Type of activations.
        n: Outputs of a row.
        top_k: Routes of a row.
        accumulate: Whether to add to y.
    """

    shader = "expert_combine"

    value: str = choice()
    n: int
    top_k: int
    accumulate: bool


def expert_outputs(weight: GpuWeight, routed: Routed, label: str) -> int:
    """Return the outputs N of each expert in a stack [experts * N, K].

    Raises:
        FormatError: Sizes that do not suit, or single values stored by column.
    """
    need_rows(weight, label)
    need_multiple(f"{label}: all experts", weight.n, routed.experts)
    need_multiple(f"{label}: K", weight.k, 4)
    return weight.n // routed.experts


def router_topk(
    ctx: OpContext,
    logits: BufferSlice,
    routes: BufferSlice,
    *,
    experts: int,
    top_k: int,
    normalize: bool,
    label: str,
) -> list[Phase]:
    """Find the `top_k` experts of each row with the largest logits, ties to the lower number.

    Args:
        ctx: Where it is lowered to.
        logits: f32 [rows, experts].
        routes: (u32 expert, f32 weight) [rows, top_k], the largest weight first.
        experts: Experts to choose from.
        top_k: Experts of a row.
        normalize: The weights of a row's experts sum to one, rather than those of all experts.
        label: What the op is.

    Raises:
        FormatError: More experts chosen than there are, or a buffer too small.
    """
    if not 0 < top_k <= experts:
        raise FormatError(
            "a row cannot go to that number of experts",
            where=label,
            expected=f"1 to {experts}",
            found=top_k,
        )
    need_floats(f"{label}: logits", logits, ctx.max_rows * experts)
    need_routes(ctx, Routed(routes, experts, top_k), label)
    record = RouterTopK(
        threads=power_of_two(experts, 32, 256), normalize=normalize, experts=experts, top_k=top_k
    )
    return [Phase(record, {"logits": logits, "routes": routes}, Work(rows=1), label)]


def need_routes(ctx: OpContext, routed: Routed, label: str) -> None:
    """Check that the routes of a pass fit their buffer.

    Raises:
        FormatError: The buffer is too small.
    """
    need_floats(f"{label}: routes", routed.routes, ctx.max_rows * routed.top_k * ROUTE_WORDS)


def groups_bytes(ctx: OpContext, experts: int) -> int:
    """Bytes of the groups of a pass."""
    return 4 * experts * (1 + ctx.max_rows)


def expert_groups(
    ctx: OpContext, routed: Routed, groups: BufferSlice, *, label: str
) -> list[Phase]:
    """Write the routes of each expert, their number first.

    Args:
        ctx: Where it is lowered to.
        routed: Where each row goes.
        groups: u32 [experts, 1 + max_rows].
        label: What the op is.

    Raises:
        FormatError: A buffer too small.
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
    accumulate: bool = False,
    label: str,
) -> list[Phase]:
    """Sum the results of a row's experts, each times its routing weight.

    Args:
        ctx: Where it is lowered to.
        routed: Where each row goes.
        inner: [rows, top_k, width].
        y: [rows, width]; another buffer than inner.
        width: Elements of a row, a multiple of 4.
        accumulate: Add to y instead of replacing it.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    need_multiple(f"{label}: width", width, 4)
    need_routes(ctx, routed, label)
    ctx.need_values(f"{label}: inner", inner, ctx.max_rows * routed.top_k * width)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * width)
    record = ExpertCombine(
        threads=THREADS, value=ctx.values, n=width, top_k=routed.top_k, accumulate=accumulate
    )
    buffers = {"routes": routed.routes, "inner": inner, "y": y}
    return [Phase(record, buffers, Work(-(-width // (4 * THREADS)), rows=1), label)]
