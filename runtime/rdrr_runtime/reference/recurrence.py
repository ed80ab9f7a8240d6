"""The ops with a state in plain torch: short convolutions and the gated delta rule, row by row.

The state of an op is read at the beginning of a pass and written at its end. It is zero for the
first token of a sequence, whatever the memory holds.
"""

from __future__ import annotations

import torch
from rdrr_manifests.graph.ops import DeltaRule, ShortConvolution
from torch import Tensor

from rdrr_runtime.reference.run import ReferencePass


def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, base: int
) -> Tensor:
    """Return y[r] = sum over j of weight[:, j] * x[r - kernel + 1 + j] + bias.

    Args:
        x: Inputs of consecutive slots, [rows, channels].
        weight: [channels, kernel].
        bias: [channels], or None.
        state: Inputs before x, [kernel, channels]; that of slot s is entry s mod kernel.
        base: Slot of row 0; slots before 0 are zero.

    Returns:
        [rows, channels].
    """
    kernel = weight.shape[1]
    slots = range(base - kernel + 1, base)
    before = [state[slot % kernel] if slot >= 0 else torch.zeros_like(state[0]) for slot in slots]
    inputs = torch.cat([torch.stack(before), x]) if before else x
    y = torch.zeros_like(x)
    for tap in range(kernel):
        y = y + inputs[tap : tap + len(x)] * weight[:, tap]
    return y if bias is None else y + bias


def keep_inputs(state: Tensor, x: Tensor, base: int) -> None:
    """Write the latest inputs x, [rows, channels] of slots from `base` on, into the state."""
    kernel = len(state)
    for row in range(max(0, len(x) - kernel), len(x)):
        state[(base + row) % kernel] = x[row]


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), written so that it is finite for every x."""
    return x.clamp_min(0.0) + torch.log1p(torch.exp(-x.abs()))


def unit(x: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(|x|^2 + eps) over the last axis."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + eps)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, strength: Tensor, state: Tensor
) -> Tensor:
    """Apply the gated delta rule row by row; see `DeltaRule` for the formula.

    Args:
        query: Unit queries, [rows, heads, key_dim].
        key: Unit keys, [rows, heads, key_dim].
        value: [rows, heads, value_dim].
        log_decay: Logarithm of the decay, [rows, heads].
        strength: Strength of each write, from 0 to 1, [rows, heads].
        state: [heads, key_dim, value_dim]; updated in place.

    Returns:
        [rows, heads, value_dim].
    """
    scale = query.shape[-1] ** -0.5
    current = state.clone()  # not changed in place, because gradients need each row's state
    out = []
    # The gradient of each index would be as large as all rows together.
    rows = map(torch.unbind, (query.unsqueeze(-1), key.unsqueeze(-1), value, log_decay, strength))
    for q, k, v, log_factor, share in zip(*rows, strict=True):
        current = current * torch.exp(log_factor)[:, None, None]
        known = (current * k).sum(dim=1)
        write = share.unsqueeze(-1) * (v - known)
        current = current + k * write.unsqueeze(1)
        out.append((current * q).sum(dim=1) * scale)
    state.copy_(current)
    return torch.stack(out) if out else torch.empty_like(value)


def compute_convolution(run: ReferencePass, op: ShortConvolution) -> tuple[Tensor, Tensor]:
    """Return the convolution of a pass before activation, and its outer gate (or ones)."""
    x = run.values[op.x]
    gate = torch.ones_like(x)
    if op.parts == 3:
        inner, gate, values = x.split(op.channels, dim=-1)
        x = inner * values
    state, weight = run.memory.states[op.state], run.weight(op.weight)[:, 0]
    bias = run.optional(op.bias)
    if op.factors is not None:
        factors = torch.tensor(op.factors.factors, dtype=weight.dtype)
        of_channels = factors.repeat_interleave(torch.tensor(op.factors.counts))
        weight = weight * of_channels.to(weight.device).unsqueeze(1)
    y = short_convolution(x, weight, bias, state, run.base)
    keep_inputs(state, x[: run.kept], run.base)
    return y, gate


def compute_delta_rule(run: ReferencePass, op: DeltaRule) -> Tensor:
    """Compute the gated delta rule of a pass, [rows, heads * value_dim], and keep its state."""
    keys = op.key_heads * op.key_dim
    query, key, value = run.values[op.qkv].split((keys, keys, op.heads * op.value_dim), dim=-1)
    query, key = (
        unit(vectors.unflatten(-1, (op.key_heads, op.key_dim)), op.eps).repeat_interleave(
            op.heads // op.key_heads, dim=1
        )
        for vectors in (query, key)
    )
    value = value.unflatten(-1, (op.heads, op.value_dim))
    decay = run.values[op.decay] + run.weight(op.decay_bias)
    # The weight is the logarithm of a rate: exp makes it positive, so the state only decays.
    log_decay = -torch.exp(run.weight(op.rate)) * softplus(decay)
    strength = torch.sigmoid(run.values[op.strength])
    state = run.memory.states[op.state]
    if run.base == 0:
        state.zero_()
    parts, working_state = [], state.clone()
    # Only the first rows change the state that stays; the others continue from a copy of it.
    for rows in (slice(0, run.kept), slice(run.kept, len(query))):
        q, k, v = query[rows], key[rows], value[rows]
        parts.append(delta_rule(q, k, v, log_decay[rows], strength[rows], working_state))
        if rows.start == 0:
            state.copy_(working_state)
    return torch.cat(parts).flatten(-2)
