"""Sources of draft tokens: the sequence itself, a smaller model, or the model's own draft head.

A draft proposes tokens and the target model verifies them. So a wrong draft token never changes the
sequence; it only costs the row in which it was verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rdrr_runtime.backend import F32, Backend
    from rdrr_runtime.decode.probabilities import F64, ProbabilitySampler


@dataclass(frozen=True)
class Proposal:
    """Draft tokens proposed for one pass.

    Attributes:
        ids: Token ids in order; there may be none.
        probabilities: The distribution that each token was sampled from, f64 [vocab]; None if the
            tokens were not sampled.
    """

    ids: list[int] = field(default_factory=list)
    probabilities: list[F64] | None = None


class Draft(Protocol):
    """A source of draft tokens."""

    def begin(self, ids: Sequence[int], base: int) -> int:
        """Prepare for a new sequence.

        Args:
            ids: The prompt.
            base: Number of its first tokens that are in the cache of the target model.

        Returns:
            The number of first tokens after which the target model must run the prompt, at most
            `base` unless the draft has run a part of it.
        """

    def end(self, ids: Sequence[int] | None) -> None:
        """End the sequence.

        Args:
            ids: All of its ids, of which the target model has run all but the last; None if the
                generation was abandoned.
        """

    def propose(
        self, ids: Sequence[int], count: int, sampler: ProbabilitySampler | None
    ) -> Proposal:
        """Return at most `count` tokens that may come next.

        Args:
            ids: All ids of the sequence so far, at least one. From call to call they only grow
                until the next `begin`.
            count: Largest number of draft tokens, at least one.
            sampler: Samples the draft tokens; None to take the most probable ones.
        """


@dataclass
class NgramDraft:
    """A draft that repeats what followed the last tokens at their latest earlier occurrence.

    This is prompt lookup decoding (Saxena 2023).

    Attributes:
        longest: Length of the longest n-gram that is looked up; shorter ones are tried after it.
        shortest: Length of the shortest n-gram that is looked up.
    """

    longest: int = 3
    shortest: int = 2
    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    _read: int = 0

    def begin(self, ids: Sequence[int], base: int) -> int:
        """Forget the n-grams of the previous sequence."""
        del ids
        self._after.clear()
        self._read = 0
        return base

    def end(self, ids: Sequence[int] | None) -> None:
        """Do nothing: the next sequence has n-grams of its own."""

    def propose(
        self, ids: Sequence[int], count: int, sampler: ProbabilitySampler | None
    ) -> Proposal:
        """Return the tokens after the latest earlier occurrence of the last n-gram."""
        del sampler
        for end in range(self._read + 1, len(ids)):
            for size in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(ids[end - size : end])] = end
        self._read = max(self._read, len(ids) - 1)
        for size in range(min(self.longest, len(ids) - 1), self.shortest - 1, -1):
            start = self._after.get(tuple(ids[-size:]))
            if start is not None:
                period = len(ids) - start  # past the end of the sequence the draft repeats itself
                return Proposal([ids[start + at % period] for at in range(count)])
        return Proposal()


@dataclass
class ModelDraft:
    """A draft model: a smaller model with the same vocabulary.

    Attributes:
        backend: The draft model, with a key-value cache of its own.
    """

    backend: Backend
    _held: list[int] = field(default_factory=list)
    _agreed: int = 0

    def begin(self, ids: Sequence[int], base: int) -> int:
        """Compare the next sequence with the cached ids from its first id on."""
        del ids
        self._agreed = 0
        return base

    def end(self, ids: Sequence[int] | None) -> None:
        """Do nothing: the draft model runs what it lacks when it proposes the next tokens."""

    def propose(
        self, ids: Sequence[int], count: int, sampler: ProbabilitySampler | None
    ) -> Proposal:
        """Return the tokens that the draft model generates; none once its context is full."""
        from rdrr_runtime.backend import resumable  # imports numpy, which --help needs not load

        count = min(count, self.backend.info.context - len(ids) + 1)
        if count < 1:
            return Proposal()
        base = resumable(self.backend, self._shared(ids))
        pending = list(ids[base:])
        # Two ids are pending after all draft tokens were accepted. Two decode passes are faster
        # than one prefill pass.
        if len(pending) == 2:
            self.backend.fill(pending[:1], base)
            pending, base = pending[1:], base + 1
        if sampler is None:
            proposal = Proposal(self.backend.greedy(pending, base, count))
        else:
            proposal = sampled(self.backend.logits, ids, (pending, base), count, sampler)
        self._held = [*ids, *proposal.ids[:-1]]
        self._agreed = len(ids)
        return proposal

    def _shared(self, ids: Sequence[int]) -> int:
        """Return how many leading ids are in the cache; the last id always runs."""
        at, end = min(self._agreed, len(ids) - 1), min(len(self._held), len(ids) - 1)
        while at < end and self._held[at] == ids[at]:
            at += 1
        return at


def sampled(
    logits: Callable[[Sequence[int], int], F32],
    ids: Sequence[int],
    rows: tuple[Sequence[int], int],
    count: int,
    sampler: ProbabilitySampler,
) -> Proposal:
    """Return `count` tokens, each sampled after the one before it.

    Args:
        logits: Runs rows from a slot on and returns the logits after the last one, f32 [1, vocab].
        ids: The sequence so far.
        rows: The rows to run first, and the slot of their first one.
        count: Number of tokens.
        sampler: Samples them.
    """
    pending, base = rows
    drafted: list[int] = []
    probabilities: list[F64] = []
    for _ in range(count):
        (row,) = logits(pending, base)
        probabilities.append(sampler.probabilities(row, [*ids, *drafted]))
        drafted.append(sampler.sample(probabilities[-1]))
        base += len(pending)
        pending = drafted[-1:]
    return Proposal(drafted, probabilities)
