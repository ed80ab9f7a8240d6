"""Where guesses at the next tokens come from: the text itself, or a smaller model.

A draft proposes; `speculative` lets the model judge. So a draft may be wrong without harm to the
text, and costs only the rows that it was wrong in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rdrr_runtime.backend import Backend
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import distribution

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Draw:
    """How tokens are drawn.

    Attributes:
        options: Temperature and the rest.
        random: Of all draws of one generation.
    """

    options: SamplingParams
    random: np.random.Generator

    def shares(self, logits: npt.NDArray[np.float32], text: Sequence[int]) -> F64:
        """Probability of each token after a text."""
        return distribution(logits, text, self.options)

    def one(self, shares: F64) -> int:
        """A token drawn by these probabilities, which need not sum to one."""
        edges = np.cumsum(shares)
        place = int(np.searchsorted(edges, self.random.random() * edges[-1], side="right"))
        return min(place, int(np.flatnonzero(shares)[-1]))


@dataclass(frozen=True)
class Proposal:
    """Guesses at the next tokens.

    Attributes:
        ids: In order, maybe none.
        shares: The distribution that each was drawn from; None where nothing was drawn.
    """

    ids: list[int] = field(default_factory=list)
    shares: list[F64] | None = None


class Draft(Protocol):
    """A source of guesses."""

    def begin(self) -> None:
        """Be told that another text follows."""
        ...

    def propose(self, text: Sequence[int], count: int, draw: Draw | None) -> Proposal:
        """At most `count` tokens that may come next.

        Args:
            text: All ids so far, at least one; since `begin` only ever longer.
            count: Most guesses, at least one.
            draw: How to draw them; the likeliest when None.
        """
        ...


@dataclass
class NgramDraft:
    """What followed the last tokens when they were there before (Saxena 2023, prompt lookup).

    Attributes:
        longest: Tokens that are looked for first.
        shortest: Tokens that must at least be found.
    """

    longest: int = 3
    shortest: int = 2
    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    _read: int = 0

    def begin(self) -> None:
        """Forget the text before."""
        self._after.clear()
        self._read = 0

    def propose(self, text: Sequence[int], count: int, draw: Draw | None) -> Proposal:
        """What came after the latest place where the text was as it is now."""
        del draw
        for end in range(self._read + 1, len(text)):
            for size in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(text[end - size : end])] = end
        self._read = max(self._read, len(text) - 1)
        for size in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            start = self._after.get(tuple(text[-size:]))
            if start is not None:
                period = len(text) - start  # beyond the end the guesses repeat themselves
                return Proposal([text[start + at % period] for at in range(count)])
        return Proposal()


@dataclass
class ModelDraft:
    """Another model with the same tokens.

    Attributes:
        backend: It, with a cache of its own.
    """

    backend: Backend
    _held: list[int] = field(default_factory=list)
    _agreed: int = 0

    def begin(self) -> None:
        """Compare the next text with what the cache holds from its start."""
        self._agreed = 0

    def propose(self, text: Sequence[int], count: int, draw: Draw | None) -> Proposal:
        """What the model writes after the text; nothing once its context is full."""
        count = min(count, self.backend.info.context - len(text) + 1)
        if count < 1:
            return Proposal()
        base = self._shared(text)
        pending = list(text[base:])
        if len(pending) == 2:  # after full acceptance: two passes of one row beat one of a prompt
            self.backend.fill(pending[:1], base)
            pending, base = pending[1:], base + 1
        if draw is None:
            proposal = Proposal(self.backend.greedy(pending, base, count))
        else:
            proposal = self._drawn(text, pending, base, count, draw)
        self._held = [*text, *proposal.ids[:-1]]
        self._agreed = len(text)
        return proposal

    def _shared(self, text: Sequence[int]) -> int:
        """Leading ids of the text that are in the cache; the last is run in any case."""
        at, end = min(self._agreed, len(text) - 1), min(len(self._held), len(text) - 1)
        while at < end and self._held[at] == text[at]:
            at += 1
        return at

    def _drawn(
        self, text: Sequence[int], pending: Sequence[int], base: int, count: int, draw: Draw
    ) -> Proposal:
        ids: list[int] = []
        shares: list[F64] = []
        for _ in range(count):
            logits = self.backend.logits(pending, base)[0]
            shares.append(draw.shares(logits, [*text, *ids]))
            ids.append(draw.one(shares[-1]))
            base += len(pending)
            pending = ids[-1:]
        return Proposal(ids, shares)
