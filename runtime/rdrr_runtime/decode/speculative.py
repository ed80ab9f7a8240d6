"""Speculative decoding: a draft guesses some tokens, and one pass of the model judges all of them.

Leviathan et al. 2023, arXiv 2211.17192. Greedy: a guess stays while it is what the model would have
chosen, and the model's own choice follows, so the text is that of greedy decoding. Drawn: a guess x
from a draft's q stays with probability min(1, p(x) / q(x)), and the first that does not is replaced
by a draw from max(p - q, 0), so the text has the model's own distribution. What was judged wrong is
overwritten in the cache by the next pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from rdrr_format.errors import UsageError

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode.base import Counts, Job, until_stop
from rdrr_runtime.decode.drafts import Draft, Draw, Proposal
from rdrr_runtime.sampling.params import SamplingParams


@dataclass(frozen=True)
class Speculative:
    """A draft's guesses, judged by the model.

    Attributes:
        draft: Where guesses come from.
        tokens: Most guesses of a pass.
        sampling: How the model's tokens are chosen.
    """

    draft: Draft
    tokens: int = 5
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        """Check the number of guesses.

        Raises:
            UsageError: None at all.
        """
        if self.tokens < 1:
            raise UsageError(
                "draft-tokens is out of range", expected="1 or more", found=self.tokens
            )

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of ids: those of a pass that stay, and the one after them."""
        judge = _Judge(backend, self.sampling)
        text = [*job.seen, *job.prompt]
        pending, base, left = list(job.prompt), job.base, job.max_tokens
        proposal = Proposal()  # none for the prompt
        self.draft.begin()
        while True:
            kept = judge.judge(pending, base, proposal, text)
            delivered, ended = until_stop(kept, job.stop_ids)
            guesses, rows = len(proposal.ids), len(pending) + len(proposal.ids)
            counts.readbacks += 1
            if base > job.base:
                counts.forwards += 1
                counts.rows += rows
                counts.wasted_rows += rows - len(delivered)
                counts.drafted += guesses
                counts.accepted += min(len(kept) - 1, len(delivered))
            base += len(pending) + len(kept) - 1
            text += delivered
            left -= len(delivered)
            yield delivered
            if ended or left < 1:
                return
            pending = kept[-1:]
            most = min(self.tokens, left - 1, backend.info.context - base - 1)
            proposal = self.draft.propose(text, most, judge.draw) if most > 0 else Proposal()


class _Judge:
    """The model's verdict on guesses; `draw` is None where it takes the likeliest."""

    def __init__(self, backend: Backend, sampling: SamplingParams) -> None:
        self._backend = backend
        random = np.random.Generator(np.random.Philox(sampling.seed))
        self.draw = None if sampling.is_greedy else Draw(sampling, random)

    def judge(
        self, pending: Sequence[int], base: int, proposal: Proposal, text: Sequence[int]
    ) -> list[int]:
        """The guesses that stay and one token more; `text` ends with `pending`."""
        if self.draw is None:
            return self._likeliest(pending, base, proposal)
        return self._drawn(self.draw, pending, base, proposal, text)

    def _likeliest(self, pending: Sequence[int], base: int, proposal: Proposal) -> list[int]:
        ids = proposal.ids
        if not ids:
            return self._backend.greedy(pending, base, 1)
        own, _ = self._backend.window_picks([*pending, *ids], base, wanted=len(ids) + 1)
        pairs = enumerate(zip(ids, own, strict=False))
        wrong = next((at for at, (guess, choice) in pairs if guess != choice), len(ids))
        return own[: wrong + 1]

    def _drawn(
        self,
        draw: Draw,
        pending: Sequence[int],
        base: int,
        proposal: Proposal,
        text: Sequence[int],
    ) -> list[int]:
        ids = proposal.ids
        if not ids:
            return [draw.one(draw.shares(self._backend.logits(pending, base)[0], text))]
        logits = self._backend.window_logits([*pending, *ids], base, wanted=len(ids) + 1)
        for at, guess in enumerate(ids):
            own = draw.shares(logits[at], [*text, *ids[:at]])
            drafted = np.zeros_like(own)
            drafted[guess] = 1.0
            if proposal.shares is not None:
                drafted = proposal.shares[at]
            if draw.random.random() * drafted[guess] >= own[guess]:
                rest = np.maximum(own - drafted, 0.0)
                # Nothing may be left where both are the same but for rounding.
                return [*ids[:at], draw.one(rest if rest.any() else own)]
        return [*ids, draw.one(draw.shares(logits[-1], [*text, *ids]))]
