"""Greedy decoding without a key-value cache: the whole sequence is run again for each token.

Some published systems decode in this way, or state their speed-up over it. It is a baseline.
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
class Uncached(Strategy):
    """The most probable token after the sequence, which is run from its start each time."""

    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield lists of one token id each."""
        ids = list(chooser.ids)
        for index in range(job.max_tokens):
            new = chooser.deliver(ChosenTokens(chooser.backend.greedy(ids, 0, 1)))
            counts.readbacks += 1
            counts.forwards += index > 0
            counts.rows += len(ids) if index else 0
            counts.wasted_rows += len(ids) - 1 if index else 0
            yield new
            if chooser.ended:
                return
            ids += new
