"""From logits to one token id on the host: penalties, temperature, truncation and the draw.

Greedy decoding does not come here: its argmax runs on the device. Order of the steps: repetition
penalty, temperature, top-k, top-p, min-p, draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import UsageError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen.

    Attributes:
        temperature: Divides the logits; 0 means greedy.
        top_k: Keep the k likeliest tokens; None or 0 for all.
        top_p: Keep the likeliest tokens whose probabilities together reach p.
        min_p: Keep tokens at least min_p times as likely as the likeliest.
        repeat_penalty: Logits of tokens seen before are divided (positive) or multiplied
            (negative) by it (Keskar et al. 2019); 1 or None for none.
        seed: Of the draws; None for a fresh one.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            UsageError: A value outside its range.
        """
        checks = {
            "temperature": (self.temperature >= 0, "0 or more"),
            "top_k": (self.top_k is None or self.top_k >= 0, "0 or more"),
            "top_p": (self.top_p is None or 0 < self.top_p <= 1, "above 0, at most 1"),
            "min_p": (self.min_p is None or 0 <= self.min_p <= 1, "between 0 and 1"),
            "repeat_penalty": (self.repeat_penalty is None or self.repeat_penalty > 0, "above 0"),
            "seed": (self.seed is None or self.seed >= 0, "0 or more"),
        }
        for name, (holds, expected) in checks.items():
            if not holds:
                raise UsageError(
                    f"{name} is out of range", expected=expected, found=getattr(self, name)
                )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken and nothing changes the logits before."""
        return self.temperature == 0 and self.repeat_penalty in (None, 1.0)


class Sampler:
    """Draws tokens; holds the generator, so that one seed gives one text.

    Args:
        options: How to choose.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._options = options
        self._generator = np.random.Generator(np.random.Philox(options.seed))

    def choose(self, logits: F32, seen: Sequence[int] = ()) -> int:
        """One token id.

        Args:
            logits: float32 [vocab].
            seen: Ids that the repetition penalty applies to.
        """
        options = self._options
        scores = logits.astype(np.float64)
        if options.repeat_penalty not in (None, 1.0) and len(seen):
            _penalize(scores, np.unique(np.asarray(seen)), options.repeat_penalty)
        if options.temperature == 0:
            return int(np.argmax(scores))
        ids, probabilities = _truncate(scores / options.temperature, options)
        edges = np.cumsum(probabilities)
        draw = self._generator.random() * edges[-1]
        return int(ids[min(int(np.searchsorted(edges, draw, side="right")), len(ids) - 1)])


def _penalize(scores: F64, seen: npt.NDArray[np.int64], penalty: float) -> None:
    values = scores[seen]
    scores[seen] = np.where(values > 0, values / penalty, values * penalty)


def _truncate(scores: F64, options: SamplingOptions) -> tuple[npt.NDArray[np.int64], F64]:
    """The candidates that remain, likeliest first, and their unnormalised probabilities."""
    # Stable, so that equal logits keep the lower id first.
    order = np.argsort(-scores, kind="stable")
    if options.top_k:
        order = order[: options.top_k]
    probabilities = np.exp(scores[order] - scores[order[0]])
    if options.top_p is not None and options.top_p < 1:
        share = np.cumsum(probabilities) / probabilities.sum()
        # The token that crosses p stays, so at least one always does.
        count = int(np.searchsorted(share, options.top_p)) + 1
        order, probabilities = order[:count], probabilities[:count]
    if options.min_p:
        keep = probabilities >= options.min_p * probabilities[0]
        order, probabilities = order[keep], probabilities[keep]
    return order, probabilities
