"""Entropy of the distributions given by rows of logits, computed on the host.

`phases/sampling/argmax_entropy.py` computes the same on the GPU.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


def entropies(logits: F32) -> F32:
    """Return the entropy of softmax(row) for each row, in nats, float32 [n].

    With x = logit - max and S = sum exp(x), the entropy is log S - sum(x exp(x)) / S.

    Args:
        logits: float32 [n, vocab]; -inf for tokens that are not allowed.
    """
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    # exp(-inf) * -inf would be NaN; its limit is 0.
    terms = np.where(weights > 0, weights * np.where(weights > 0, shifted, 0.0), 0.0)
    entropy: F32 = (np.log(total) - terms.sum(axis=-1) / total).astype(np.float32)
    return entropy
