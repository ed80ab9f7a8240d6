"""Probabilities from logits: log-softmax, divergence, and the log-likelihood of a continuation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_ROWS = 64
"""Rows of logits that are converted to float64 at once."""


@dataclass(frozen=True)
class Loglikelihood:
    """How probable a model finds a continuation.

    Attributes:
        total: Sum over the tokens of the logarithm of their probability, in nats.
        is_greedy: Whether each token is the most probable one, so that greedy decoding gives the
            continuation.
    """

    total: float
    is_greedy: bool


def loglikelihood(logits: F32, ids: Sequence[int]) -> Loglikelihood:
    """Return the log-likelihood of tokens.

    Args:
        logits: Logits before each token, float32 [len(ids), vocab].
        ids: Token ids.
    """
    rows = np.arange(len(ids))
    tokens = np.asarray(ids, np.int64)
    total = log_softmax(logits)[rows, tokens].sum(dtype=np.float64)
    return Loglikelihood(float(total), bool((logits.argmax(axis=1) == tokens).all()))


def log_softmax(logits: F32) -> F32:
    """Return log-probabilities, float32 [n, vocab], computed in float64."""
    out = np.empty_like(logits)
    for rows in _blocks(len(logits)):
        shifted = logits[rows].astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        out[rows] = shifted
    return out


def divergence(base: F32, model: F32) -> F64:
    """Return the Kullback-Leibler divergence of each row, sum(p_base * (log p_base - log p_model)).

    Args:
        base: Log-probabilities of the base, float32 [n, vocab].
        model: Log-probabilities of the model, float32 [n, vocab].

    Returns:
        Divergences in nats, float64 [n].
    """
    out = np.empty(len(base), np.float64)
    for rows in _blocks(len(base)):
        reference = base[rows].astype(np.float64)
        out[rows] = (np.exp(reference) * (reference - model[rows])).sum(axis=1)
    return out


def _blocks(count: int) -> Iterator[slice]:
    for first in range(0, count, _ROWS):
        yield slice(first, first + _ROWS)
