"""Ops on single rows in plain torch: embeddings, products and norms."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_UNITS = 1 << 40
"""Probability 1 as an integer: float32 has 24 bits, and a vocabulary 20 at most."""


def embed(tokens: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
    """Return scale * table[tokens], with row 0 for tokens beyond the table.

    Args:
        tokens: int [rows].
        table: [vocab, hidden].
        scale: Factor on every value.

    Returns:
        [rows, hidden].
    """
    # Indexing would add up the gradients of equal tokens in any order.
    return functional.embedding(torch.where(tokens < len(table), tokens, 0), table) * scale


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + bias: [rows, K], [N, K] -> [rows, N]."""
    return functional.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * (offset + weight) over the last axis."""
    return functional.rms_norm(x, x.shape[-1:], eps=eps) * (offset + weight)


def layer_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return (x - mean(x)) / sqrt(var(x) + eps) * (offset + weight) over the last axis."""
    return functional.layer_norm(x, x.shape[-1:], eps=eps) * (offset + weight)


def sampled(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Return a token for each row, sampled from the softmax of its logits, int [rows, 1].

    The random numbers do not depend on the device, and sums of integers not on their order, in
    which CUDA's sums of floats may differ from run to run.

    Args:
        logits: [rows, vocab].
        generator: Random numbers of the CPU.
    """
    sums = (torch.softmax(logits, -1) * _UNITS).long().cumsum(-1)
    chances = torch.rand(len(logits), 1, generator=generator).to(logits.device)
    reached = (chances.double() * sums[:, -1:]).long()
    return torch.searchsorted(sums, reached, right=True).clamp_(max=sums.shape[1] - 1)


def argmax(logits: Tensor) -> int:
    """Return the index of the largest logit of [vocab], ties to the lower index."""
    return int((logits == logits.max()).nonzero()[0])
