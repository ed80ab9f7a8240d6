"""Greedy decoding with all logits read back and the argmax on the host, one token a pass.

It chooses the ids that `greedy` chooses, at the cost of the vocabulary read back for each; it is
there to be measured against.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode.base import Counts, Job


@dataclass(frozen=True)
class GreedyOnHost:
    """Always the likeliest token; ties go to the lower id, as on the device."""

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of one id each."""
        pending, base = list(job.prompt), job.base
        for index in range(job.max_tokens):
            token_id = int(backend.logits(pending, base)[0].argmax())
            counts.readbacks += 1
            counts.forwards += index > 0
            counts.rows += index > 0
            base += len(pending)
            yield [token_id]
            if token_id in job.stop_ids:
                return
            pending = [token_id]
