"""Draft tokens from the model's own head for multi-token prediction.

The head has a cache with the same slots as the model. Its row of slot p holds the token after that
slot and the hidden state that the model has computed there, so that the head follows behind the
model: after each pass of the model it runs the rows of the tokens that have been accepted, and the
row of the newest token gives the first draft token. For further draft tokens it reads its own
hidden states; those rows are run again with the model's once their tokens are accepted.

The hidden states of only the latest slots are kept. So the model runs a long prompt in parts, after
each of which the head follows. Where the model has a prompt in its cache that the head has not
seen, because it was run by another strategy, the model runs that part again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from rdrr_runtime.decode.drafts import Proposal, sampled

if TYPE_CHECKING:
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.probabilities import ProbabilitySampler
    from rdrr_runtime.draft_backend import DraftHead


class MtpDraft:
    """The draft head of a model.

    Args:
        target: The model, which can keep its hidden states (`DraftingBackend`).
        head: Its draft head.
    """

    def __init__(self, target: Backend, head: DraftHead) -> None:
        self._target, self._head = target, head

    def begin(self, ids: Sequence[int], base: int) -> int:
        """Run all of a long prompt but its end; return where the model must continue."""
        from rdrr_runtime.backend import resumable  # imports numpy, which --help needs not load

        self._keep_hidden(keeps=True)
        base = resumable(self._target, min(base, self._rows_of(ids)))
        self._head.seen = list(ids[: base + 1])
        while len(ids) - base > self._head.rows:
            part = self._head.rows
            self._target.fill(ids[base : base + part], base)
            base += part
            self._follow(ids[: base + 1])
        return base

    def propose(
        self, ids: Sequence[int], count: int, sampler: ProbabilitySampler | None
    ) -> Proposal:
        """Return the tokens that the head predicts."""
        base = len(self._head.seen) - 1
        rows = list(ids[base + 1 :])
        self._head.seen = list(ids)
        if sampler is None:
            return Proposal(self._head.greedy(rows, base, count))
        return sampled(self._head.logits, ids, (rows, base), count, sampler)

    def end(self, ids: Sequence[int] | None) -> None:
        """Follow to the end of a sequence, so that the next one can continue it."""
        if ids is not None:
            self._follow(ids)
        self._keep_hidden(keeps=False)

    def _rows_of(self, ids: Sequence[int]) -> int:
        """Return how many rows of the head belong to a sequence."""
        pairs = zip(self._head.seen, ids, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return max(same - 1, 0)

    def _follow(self, ids: Sequence[int]) -> None:
        """Run the rows of the tokens since the last call."""
        base = len(self._head.seen) - 1
        if len(ids) - 1 > base:
            self._head.fill(list(ids[base + 1 :]), base)
            self._head.seen = list(ids)

    def _keep_hidden(self, *, keeps: bool) -> None:
        from rdrr_runtime.draft_backend import DraftingBackend

        assert isinstance(self._target, DraftingBackend), "checked when the head was loaded"
        self._target.keep_hidden(keeps=keeps)
