"""Sources of draft tokens: the sequence itself, or a smaller model.

A draft proposes tokens and the target model verifies them. So a wrong draft token never changes the
sequence; it only costs the row in which it was verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rdrr_runtime.backend import Backend
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

    def begin(self) -> None:
        """Prepare for a new sequence."""
        ...

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
        ...


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

    def begin(self) -> None:
        """Forget the n-grams of the previous sequence."""
        self._after.clear()
        self._read = 0

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

    def begin(self) -> None:
        """Compare the next sequence with the cached ids from its first id on."""
        self._agreed = 0

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
            proposal = self._sampled(ids, pending, base, count, sampler)
        self._held = [*ids, *proposal.ids[:-1]]
        self._agreed = len(ids)
        return proposal

    def _shared(self, ids: Sequence[int]) -> int:
        """Return how many leading ids are in the cache; the last id always runs."""
        at, end = min(self._agreed, len(ids) - 1), min(len(self._held), len(ids) - 1)
        while at < end and self._held[at] == ids[at]:
            at += 1
        return at

    def _sampled(
        self,
        ids: Sequence[int],
        pending: Sequence[int],
        base: int,
        count: int,
        sampler: ProbabilitySampler,
    ) -> Proposal:
        drafted: list[int] = []
        probabilities: list[F64] = []
        for _ in range(count):
            logits = self.backend.logits(pending, base)[0]
            probabilities.append(sampler.probabilities(logits, [*ids, *drafted]))
            drafted.append(sampler.sample(probabilities[-1]))
            base += len(pending)
            pending = drafted[-1:]
        return Proposal(drafted, probabilities)
