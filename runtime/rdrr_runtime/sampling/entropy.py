"""Entropy of the distributions that rows of logits stand for, on the host.

`phases/argmax_entropy.py` computes the same on the GPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


def entropies(logits: F32) -> F32:
    """Entropy of softmax(row) in nats, float32 [n].

    Args:
        logits: float32 [n, vocab]; -inf for what cannot come.
    """
    below = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights = np.exp(below)
    total = weights.sum(axis=-1)
    mass = np.where(weights > 0, weights * np.where(weights > 0, below, 0.0), 0.0).sum(axis=-1)
    found: F32 = (np.log(total) - mass / total).astype(np.float32)
    return found
