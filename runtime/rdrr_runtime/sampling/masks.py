"""The rule that decides which masks of a window are filled, and the entropies that it compares.

Both are computed on the host; `argmax_entropy.py` and `fill_masks.py` in `phases/sampling` compute
the same on the GPU. Host and GPU add in f32 and compare the sum with an f32 number, so they fill
the same masks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

NEVER = np.float32(-3e38)
"""A threshold that no entropy is below."""


@dataclass(frozen=True)
class MaskRules:
    """A window of positions after the sequence, and which of its masks a pass fills.

    Attributes:
        mask_id: Id of the mask token.
        window: Positions in the window; a pass also runs the tokens that it has just completed, so
            it has up to twice as many rows.
        tau: Entropy in nats below which a mask is filled; None fills one mask per pass.
        slope: Amount added to an entropy for each position after the first mask.
        most: Most masks filled in a pass; None for no limit.
    """

    mask_id: int
    window: int
    tau: float | None
    slope: float = 0.0
    most: int | None = None

    @property
    def threshold(self) -> np.float32:
        """The threshold `tau` as it is compared."""
        return NEVER if self.tau is None else np.float32(self.tau)

    @property
    def penalties(self) -> F32:
        """The amount added to an entropy by distance from the first mask, f32 [2 window]."""
        return (self.slope * np.arange(2 * self.window)).astype(np.float32)

    def select(self, entropies: F32, positions: npt.NDArray[np.int64]) -> list[int]:
        """Return the indices of the masks to fill, at least one.

        Args:
            entropies: Entropy of each mask in nats, at least one.
            positions: Position of each mask, ascending.
        """
        raised = entropies + self.penalties[positions - positions[0]]
        confident: list[int] = np.flatnonzero(raised < self.threshold)[: self.most].tolist()
        return confident or [int(raised.argmin())]


@dataclass(frozen=True)
class FilledTokens:
    """What a pass over a window has added to the sequence.

    Attributes:
        ids: Ids that follow the sequence, in order; there may be none.
        rows: Token rows of the pass; 0 if the sequence was complete before it.
    """

    ids: list[int]
    rows: int


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
