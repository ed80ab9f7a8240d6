"""Which experts each row goes to, and how much each of them counts."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import power_of_two

ROUTE_WORDS = 2
"""32-bit words of a route: the expert's number and its share."""


def router_topk(
    ctx: OpContext,
    logits: BufferSlice,
    routes: BufferSlice,
    *,
    experts: int,
    top_k: int,
    normalize: bool,
    label: str,
) -> list[Dispatch]:
    """The `top_k` experts of each row with the largest logits, ties to the lower number.

    Args:
        ctx: Where it is lowered to.
        logits: f32 [rows, experts].
        routes: (u32 expert, f32 share) [rows, top_k], the largest share first.
        experts: Experts to choose from.
        top_k: Experts of a row.
        normalize: The shares of a row sum to one, rather than those of all experts.
        label: What the op is.

    Raises:
        FormatError: More experts chosen than there are, or a buffer too small.
    """
    if not 0 < top_k <= experts:
        raise FormatError(
            "a row cannot go to so many experts",
            where=label,
            expected=f"1 to {experts}",
            found=top_k,
        )
    need_floats(f"{label}: logits", logits, ctx.max_rows * experts)
    need_floats(f"{label}: routes", routes, ctx.max_rows * top_k * ROUTE_WORDS)
    what = kernel(
        "router_topk",
        variables={"NORMALIZE": normalize},
        constants={"WG": power_of_two(experts, 32, 256), "EXPERTS": experts, "TOP_K": top_k},
    )
    buffers = {"current": ctx.state.step, "logits": logits, "routes": routes}
    return [dispatch(what, buffers, Grid(rows_axis=0), label)]
