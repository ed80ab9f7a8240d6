"""Greedy decoding that reads back all logits and takes the argmax on the host, one token per pass.

It generates the same ids as `autoregressive`, at the cost of reading back the logits of the whole
vocabulary for each. It is a baseline.
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
    """The most probable token, chosen on the host; ties go to the lower id, as on the device."""

    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield lists of one token id each."""
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
