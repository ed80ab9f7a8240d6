"""Speculative decoding: a draft proposes tokens, the target model verifies them in one pass.

Leviathan et al. 2023, arXiv 2211.17192. The result is that of the target model alone: the same ids
under greedy decoding, the same distribution under sampling. The cache entries of rejected tokens
are overwritten by the next pass. Recurrent states absorb no draft tokens, so the next pass runs the
accepted ones again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.misuse import explained
from rdrr_format.options import check_fields, documented, option

from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.drafts import Draft, ModelDraft, NgramDraft, Proposal
from rdrr_runtime.decode.mtp_draft import MtpDraft
from rdrr_runtime.decode.strategy import Models, Strategy, StrategyOptions

if TYPE_CHECKING:
    from rdrr_runtime.decode.chooser import Chooser

NGRAM, MTP = "ngram", "mtp"


@documented
@explained
@dataclass(frozen=True)
class Speculative(StrategyOptions):
    """A draft proposes tokens, and the model verifies several of them in one pass."""

    draft: str | Path = option(
        NGRAM,
        "Draft: the package of a smaller model with the same vocabulary; ngram, which repeats "
        "what followed the last tokens where they occurred before; or mtp, the model's own head "
        "for multi-token prediction.",
        metavar="PATH",
    )
    tokens: int = option(5, "Most draft tokens per pass.", flag="--draft-tokens", minimum=1)

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: A value is out of range.
        """
        check_fields(self)

    def strategy(self, models: Models) -> SpeculativeDecoding:
        """Return the strategy; a draft model or head is loaded beside the target model.

        Raises:
            UsageError: The draft model has another vocabulary, or the model has no draft head.
            StoreError: There is no package at that path.
        """
        return SpeculativeDecoding(self._draft(models), self.tokens)

    def _draft(self, models: Models) -> Draft:
        if self.draft == NGRAM:
            return NgramDraft()
        if self.draft == MTP:
            return MtpDraft(*models.draft_head())
        return ModelDraft(models.get(self.draft))


@dataclass(frozen=True)
class SpeculativeDecoding(Strategy):
    """Decoding with draft tokens that the target model verifies.

    Attributes:
        draft: Proposes the draft tokens.
        tokens: Largest number of draft tokens per pass.
    """

    draft: Draft
    tokens: int = 5

    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield groups of ids: the accepted draft tokens and the model's own token after them."""
        whole: list[int] | None = None
        try:
            yield from self._passes(job, chooser, counts)
            whole = chooser.ids
        finally:
            self.draft.end(whole)

    def _passes(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        from rdrr_runtime.backend import resumable  # imports numpy, which --help needs not load

        left, is_prompt = job.max_tokens, True
        base = self.draft.begin(chooser.ids, job.base)
        pending = chooser.ids[base:]
        proposal = Proposal()  # the pass over the prompt has no draft tokens
        while True:
            chosen = chooser.verify(pending, base, proposal)
            delivered = chooser.deliver(chosen)
            drafted, rows = len(proposal.ids), len(pending) + len(proposal.ids)
            counts.readbacks += 1
            if not is_prompt:
                counts.forwards += 1
                counts.rows += rows
                counts.wasted_rows += rows - len(delivered)
                counts.drafted += drafted
                counts.accepted += min(len(chosen.ids) - 1, len(delivered))
            is_prompt = False
            base += len(pending) + len(chosen.ids) - 1
            left -= len(delivered)
            yield delivered
            if chooser.ended or left < 1:
                return
            # The model adds a token of its own. The context bounds `left` (`Engine._runs`).
            most = min(self.tokens, left - 1)
            # States have absorbed no draft token, so the accepted ones run again.
            base = resumable(chooser.backend, base)
            pending = chooser.ids[base:]
            proposal = Proposal()
            if most > 0:
                proposal = self.draft.propose(chooser.ids, most, chooser.draft_sampler)
