"""The router of a mixture of experts in plain torch: which experts a row uses, and how much."""

from __future__ import annotations

import torch
from rdrr_manifests.graph.ops import Router
from torch import Tensor


def route(
    op: Router,
    logits: Tensor,
    selection_bias: Tensor | None = None,
    expert_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Select the experts of each row and compute their routing weights.

    Args:
        op: How experts are selected and weighted.
        logits: [rows, experts].
        selection_bias: Added to the scores for the selection only, [experts].
        expert_scale: Factors on the routing weights of each expert, [experts].

    Returns:
        Experts, int [rows, top_k], the first choice first and ties to the lower number; and their
        routing weights, [rows, top_k].
    """
    if op.scoring == "sparsemixer":
        return _sparsemixer(op, logits, expert_scale)
    scores = torch.sigmoid(logits) if op.scoring == "sigmoid" else _softmax(logits)
    if selection_bias is not None:
        choices = scores + selection_bias
    else:
        # Different logits may have the same score where float32 ends.
        choices = scores if op.group_score == "top2" and op.groups > 1 else logits
    if op.top_groups < op.groups:
        choices = _in_best_groups(op, choices)
    # torch.topk does not define the order of equal values.
    ids = choices.sort(dim=-1, descending=True, stable=True).indices[:, : op.top_k]
    factors = scores.gather(1, ids)
    if op.normalize and op.scoring == "softmax":
        factors = _softmax(logits.gather(1, ids))  # also where all of them are nearly zero
    elif op.normalize:
        factors = factors / factors.sum(dim=-1, keepdim=True).clamp(min=1e-20)
    if expert_scale is not None:
        factors = factors * expert_scale[ids]
    return ids, factors * op.scale


def _sparsemixer(op: Router, logits: Tensor, expert_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Select the experts of the largest logits, and weigh each among the experts that are near."""
    ids = logits.sort(dim=-1, descending=True, stable=True).indices[:, : op.top_k]
    left, weights = logits.clone(), []
    for rank in range(op.top_k):
        expert = ids[:, rank : rank + 1]
        top = logits.gather(1, expert)
        is_far = top - logits > op.margin * torch.maximum(logits.abs(), top)
        near = left.masked_fill(is_far, float("-inf"))
        weights.append(_softmax(near).gather(1, expert))
        left.scatter_(1, expert, float("-inf"))
    factors = torch.cat(weights, dim=1) * op.scale
    return ids, factors if expert_scale is None else factors * expert_scale[ids]


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, dim=-1)


def _in_best_groups(op: Router, choices: Tensor) -> Tensor:
    """Return the choices with -inf outside the best groups."""
    grouped = choices.unflatten(-1, (op.groups, -1))
    best = grouped.sort(dim=-1, descending=True).values
    scores = best[..., :2].sum(dim=-1) if op.group_score == "top2" else best[..., 0]
    selected = scores.sort(dim=-1, descending=True, stable=True).indices[:, : op.top_groups]
    is_out = torch.ones_like(scores, dtype=torch.bool)
    is_out.scatter_(1, selected, False)
    kept: Tensor = grouped.masked_fill(is_out.unsqueeze(-1), float("-inf"))
    return kept.flatten(-2)
