"""Greedy decoding that uses no key-value cache: the whole text is run again for each token.

Some published systems decode so, or take it as what they are faster than; it is there to be
measured against.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode.base import Counts, Job


@dataclass(frozen=True)
class Uncached:
    """Always the likeliest token after the text so far, which is run from its start."""

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of one id each."""
        text = list(job.prompt)
        for index in range(job.max_tokens):
            found = backend.greedy(text, job.base, 1)
            counts.readbacks += 1
            counts.forwards += index > 0
            counts.rows += len(text) if index else 0
            counts.wasted_rows += len(text) - 1 if index else 0
            yield found
            if found[0] in job.stop_ids:
                return
            text += found
