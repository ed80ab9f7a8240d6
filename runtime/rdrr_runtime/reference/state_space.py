"""The selective state space of Mamba 2 in plain torch, row by row."""

from __future__ import annotations

import torch
from rdrr_manifests.graph.ops import StateSpace
from torch import Tensor

from rdrr_runtime.reference.recurrence import softplus
from rdrr_runtime.reference.run import ReferencePass


def selective_scan(
    x: Tensor, b: Tensor, c: Tensor, step: Tensor, rate: Tensor, state: Tensor
) -> Tensor:
    """Return S^T C of each row, without the skip; see `StateSpace` for the formula.

    Args:
        x: [rows, heads, head_dim].
        b: [rows, heads, state_dim].
        c: [rows, heads, state_dim].
        step: Lengths of the steps, [rows, heads].
        rate: Logarithm of the rate of decay, [heads].
        state: [heads, state_dim, head_dim]; updated in place.

    Returns:
        [rows, heads, head_dim].
    """
    decay = torch.exp(-torch.exp(rate) * step)
    current = state.clone()  # not changed in place, because gradients need each row's state
    out = []
    # The gradient of each index would be as large as all rows together.
    rows = map(torch.unbind, (x, b, c, step, decay))
    for inputs, key, query, length, left in zip(*rows, strict=True):
        write = key.unsqueeze(-1) * (length.unsqueeze(-1) * inputs).unsqueeze(1)
        current = current * left[:, None, None] + write
        out.append((current * query.unsqueeze(-1)).sum(dim=1))
    state.copy_(current)
    return torch.stack(out) if out else torch.empty_like(x)


def compute_state_space(run: ReferencePass, op: StateSpace) -> Tensor:
    """Compute the state space of a pass, [rows, heads * head_dim], and keep its state."""
    inner, shared = op.heads * op.head_dim, op.groups * op.state_dim
    x, b, c = run.values[op.xbc].split((inner, shared, shared), dim=-1)
    x = x.unflatten(-1, (op.heads, op.head_dim))
    b, c = (
        vectors.unflatten(-1, (op.groups, op.state_dim)).repeat_interleave(
            op.heads // op.groups, dim=1
        )
        for vectors in (b, c)
    )
    step = softplus(run.values[op.step] * op.step_scale + run.weight(op.step_bias))
    step = step.clamp(op.least_step, op.most_step)
    rate, state = run.weight(op.rate), run.memory.states[op.state]
    if run.base == 0:
        state.zero_()
    parts, working_state = [], state.clone()
    # Only the first rows change the state that stays; the others continue from a copy of it.
    for rows in (slice(0, run.kept), slice(run.kept, len(x))):
        parts.append(selective_scan(x[rows], b[rows], c[rows], step[rows], rate, working_state))
        if rows.start == 0:
            state.copy_(working_state)
    out: Tensor = torch.cat(parts) + run.weight(op.skip).unsqueeze(-1) * x
    return out.flatten(-2)
