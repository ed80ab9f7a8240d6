"""Greedy decoding with all logits read back and the argmax on the host, one token a pass.

It chooses the ids that `autoregressive` chooses, at the cost of the vocabulary read back for each;
it is there to be measured against.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdrr_runtime.decode.base import ChosenTokens, Counts, Job
from rdrr_runtime.decode.strategy import Strategy

if TYPE_CHECKING:
    from rdrr_runtime.decode.chooser import Chooser


@dataclass(frozen=True)
class GreedyOnHost(Strategy):
    """Always the most probable token; ties go to the lower id, as on the device."""

    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield runs of one id each."""
        pending, base = list(job.prompt), job.base
        for index in range(job.max_tokens):
            token_id = int(chooser.backend.logits(pending, base)[0].argmax())
            counts.readbacks += 1
            counts.forwards += index > 0
            counts.rows += index > 0
            base += len(pending)
            pending = chooser.deliver(ChosenTokens([token_id]))
            yield pending
            if chooser.ended:
                return
