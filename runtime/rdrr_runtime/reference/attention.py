"""Attention, rope and what scales queries, in plain torch."""

from __future__ import annotations

from functools import lru_cache

import torch
from rdrr_manifests.graph.attention_ops import alibi_exponents, distance_buckets
from torch import Tensor


def rope(x: Tensor, positions: Tensor, table: Tensor, *, interleaved: bool = False) -> Tensor:
    """Apply the rotary embedding to the first 2 * pairs elements of each head.

    Elements i and i + pairs of a head form a pair, or 2i and 2i + 1 if `interleaved`.

    Args:
        x: [rows, heads, head_dim].
        positions: int [rows].
        table: [context, pairs, 2], cosine and sine of each position and pair.
        interleaved: Whether neighbours form a pair.
    """
    pairs = table.shape[1]
    cos, sin = table[positions].to(x.dtype).unsqueeze(1).unbind(-1)
    if interleaved:
        a, b = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    else:
        a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    parts = (a * cos - b * sin, b * cos + a * sin)
    rotated = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([rotated, x[..., 2 * pairs :]], dim=-1)


def position_scale(
    x: Tensor, positions: Tensor, scale: float, length: int, offset: int = 0
) -> Tensor:
    """Return x * (1 + scale * ln(1 + floor((position + offset) / length))), row by row.

    Args:
        x: [rows, width].
        positions: int [rows].
        scale: Factor on the logarithm.
        length: Positions that share one factor.
        offset: Added to the position.
    """
    steps = torch.div(positions + offset, length, rounding_mode="floor")
    return x * (1.0 + scale * torch.log1p(steps.to(x.dtype))).unsqueeze(1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    base: int = 0,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    chunk: int = 0,
    causal: bool = True,
    bias: Tensor | None = None,
    ends: Tensor | None = None,
) -> Tensor:
    """Compute attention with grouped queries.

    Args:
        q: Queries, [..., rows, heads, head_dim]; row r is in slot base + r.
        k: Keys, [..., kv_heads, slots, head_dim]; at least base + rows slots.
        v: Values, of the shape of k.
        scale: Factor on the scores q.k.
        base: Slot of row 0.
        window: Number of slots that a row attends to, including its own; 0 for all up to its own.
        softcap: Scores become softcap * tanh(score / softcap); 0 for no cap.
        sinks: [heads], a logit for each head that takes part in the softmax without a value.
        chunk: Slots of a chunk, to which a row's keys are limited; 0 for no chunks.
        causal: Whether a row attends only to slots up to its own. If not, it attends to all, and a
            window limits the distance on both sides to less than its size.
        bias: Added to the scores, [heads, rows, slots].
        ends: The slots, int [rows], up to which rows attend if they lie behind their own.

    Returns:
        [..., rows, heads, head_dim].
    """
    rows, heads, _ = q.shape[-3:]
    group = heads // k.shape[-3]
    keys = k if group == 1 else k.repeat_interleave(group, dim=-3)
    values = v if group == 1 else v.repeat_interleave(group, dim=-3)
    scores = torch.einsum("...rhd,...hjd->...hrj", q * scale, keys)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.device)
    if causal or window or chunk:
        spans = (range(base, base + rows), k.shape[-2])
        visible = _visible(*spans, window, chunk, causal=causal, device=q.device)
        if ends is not None:
            slots = torch.arange(k.shape[-2])
            visible = visible | (slots >= torch.tensor(spans[0])[:, None]) & (slots < ends[:, None])
        scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[-2]]
    return torch.einsum("...hrj,...hjd->...rhd", weights, values)


@lru_cache(maxsize=4)  # the layers of a pass differ in their windows only
def _visible(
    rows: range, count: int, window: int, chunk: int, *, causal: bool, device: torch.device
) -> Tensor:
    """Return whether the slots of some rows attend to each of `count` slots, [rows, slots]."""
    slots = torch.arange(count, device=device)
    row_slots = torch.arange(rows.start, rows.stop, device=device).unsqueeze(1)
    visible = (slots <= row_slots) | (not causal)
    if window:
        visible = visible & ((slots - row_slots).abs() < window)
    if chunk:
        visible = visible & (slots // chunk == row_slots // chunk)
    return visible


def distance_bias(weight: Tensor, distance: int, rows: range, slots: int | None = None) -> Tensor:
    """Return the bias on the scores of rows by their distance from slots, [heads, rows, slots].

    Args:
        weight: [buckets, heads].
        distance: Distance from which all slots are in the last bucket.
        rows: Slots of the rows.
        slots: Number of slots; that of the rows when None.
    """
    buckets = torch.tensor(distance_buckets(len(weight), distance))
    later = torch.arange(slots or len(rows)) - torch.tensor(rows).unsqueeze(1)
    of_pair = buckets[later.abs().clamp(max=distance)] + len(weight) // 2 * (later > 0)
    return weight[of_pair.to(weight.device)].permute(2, 0, 1)


def alibi_bias(heads: int, largest: float, rows: range, slots: int | None = None) -> Tensor:
    """Return ALiBi's bias on the scores of rows, in float32 [heads, rows, slots].

    Args:
        heads: Number of heads.
        largest: See `alibi_exponents`.
        rows: Slots of the rows.
        slots: Number of slots; that of the rows when None.
    """
    slopes = torch.tensor(alibi_exponents(heads, largest)).exp2()
    distances = (torch.arange(slots or len(rows)) - torch.tensor(rows).unsqueeze(1)).abs()
    return -slopes.view(-1, 1, 1) * distances
