"""Where draft tokens come from: the sequence itself, or a smaller model.

A draft proposes, and the model verifies. So a draft may be wrong without harm to the sequence, and
costs only the rows that it was wrong in.
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
    """Draft tokens.

    Attributes:
        ids: In order, maybe none.
        probabilities: The distribution that each was sampled from; None where nothing was sampled.
    """

    ids: list[int] = field(default_factory=list)
    probabilities: list[F64] | None = None


class Draft(Protocol):
    """A source of draft tokens."""

    def begin(self) -> None:
        """Prepare for another sequence."""
        ...

    def propose(
        self, ids: Sequence[int], count: int, sampler: ProbabilitySampler | None
    ) -> Proposal:
        """Return at most `count` tokens that may come next.

        Args:
            ids: All ids so far, at least one; since `begin` only ever longer.
            count: Most draft tokens, at least one.
            sampler: How to sample them; the most probable ones when None.
        """
        ...


@dataclass
class NgramDraft:
    """What followed the last tokens when they occurred before (Saxena 2023, prompt lookup).

    Attributes:
        longest: Tokens that are looked for first.
        shortest: Tokens that must at least be found.
    """

    longest: int = 3
    shortest: int = 2
    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    _read: int = 0

    def begin(self) -> None:
        """Forget the sequence before."""
        self._after.clear()
        self._read = 0

    def propose(
        self, ids: Sequence[int], count: int, sampler: ProbabilitySampler | None
    ) -> Proposal:
        """Return what came after the latest occurrence of the last tokens."""
        del sampler
        for end in range(self._read + 1, len(ids)):
            for size in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(ids[end - size : end])] = end
        self._read = max(self._read, len(ids) - 1)
        for size in range(min(self.longest, len(ids) - 1), self.shortest - 1, -1):
            start = self._after.get(tuple(ids[-size:]))
            if start is not None:
                period = len(ids) - start  # beyond the end the draft tokens repeat themselves
                return Proposal([ids[start + at % period] for at in range(count)])
        return Proposal()


@dataclass
class ModelDraft:
    """Another model with the same vocabulary.

    Attributes:
        backend: It, with a cache of its own.
    """

    backend: Backend
    _held: list[int] = field(default_factory=list)
    _agreed: int = 0

    def begin(self) -> None:
        """Compare the next sequence with what the cache holds from its start."""
        self._agreed = 0

    def propose(
        self, ids: Sequence[int], count: int, sampler: ProbabilitySampler | None
    ) -> Proposal:
        """Return what the model writes after the ids; nothing once its context is full."""
        count = min(count, self.backend.info.context - len(ids) + 1)
        if count < 1:
            return Proposal()
        base = self._shared(ids)
        pending = list(ids[base:])
        if len(pending) == 2:  # after full acceptance: two passes of one row beat one of a prompt
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
        """Leading ids that are in the cache; the last is run in any case."""
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
