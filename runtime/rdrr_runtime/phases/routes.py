"""The routes of a pass in a mixture of experts (MoE): which experts compute which rows.

A route is one (row, expert) pair; each row has top_k of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats

ROUTE_WORDS = 2
"""32-bit words of a route: the expert's number and its routing weight."""


@dataclass(frozen=True)
class Routed:
    """The routes of a pass.

    Attributes:
        routes: (u32 expert, f32 routing weight) [rows, top_k].
        experts: Number of experts.
        top_k: Routes of a row.
        scales_inputs: Whether the routing weight multiplies the inputs of an expert, and not its
            outputs.
    """

    routes: BufferSlice
    experts: int
    top_k: int
    scales_inputs: bool = False


def need_routes(ctx: OpContext, routed: Routed, label: str) -> None:
    """Check that the routes of a pass fit their buffer.

    Raises:
        FormatError: The buffer is too small.
    """
    need_floats(f"{label}: routes", routed.routes, ctx.max_rows * routed.top_k * ROUTE_WORDS)
