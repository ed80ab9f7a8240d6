"""The experts of a mixture in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rdrr_runtime.reference.rows import linear

Projection = tuple[Tensor, Tensor | None]
"""The weight of a projection and its bias, if there is one."""


def experts(
    x: Tensor,
    ids: Tensor,
    factors: Tensor,
    expert: Callable[[int], tuple[Projection | None, Projection, Projection]],
    activate: Callable[[Tensor | None, Tensor], Tensor],
    observe: Callable[[int, Tensor, Tensor], None] | None = None,
    *,
    scales_inputs: bool = False,
) -> Tensor:
    """Return the weighted sum of the outputs of each row's experts: [rows, K] -> [rows, K].

    Args:
        x: [rows, K].
        ids: Experts of each row, int [rows, top_k].
        factors: Routing weights of these experts, [rows, top_k].
        expert: Returns the gate and up projections [width, K] and the down projection [K, width]
            of an expert, given its number; the gate is None for experts without one.
        activate: Returns the inner activations of some rows, given their gates, if there are any,
            and their ups.
        observe: Called with the number of each expert that is used, the rows that enter its gate
            and up projections, and the rows that enter its down projection.
        scales_inputs: Multiply the inputs of an expert by the routing weight, not its outputs.
    """
    out = torch.zeros_like(x)
    for number in ids.unique().tolist():
        gate, up, down = expert(number)
        rows, rank = (ids == number).nonzero(as_tuple=True)
        weight = factors[rows, rank].unsqueeze(1)
        outer = x[rows] * weight if scales_inputs else x[rows]
        gated = None if gate is None else linear(outer, *gate)
        inner = activate(gated, linear(outer, *up))
        if observe is not None:
            observe(number, outer, inner)
        result = linear(inner, *down)
        out[rows] += result if scales_inputs else result * weight
    return out
