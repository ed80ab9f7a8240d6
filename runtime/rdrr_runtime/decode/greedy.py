"""Greedy decoding with the argmax on the device and ids read back every few tokens.

The first token is read at once, for the sake of the time to first token. An end-of-text inside an
interval is seen when the interval is read; the passes after it were wasted, and the next
generation's `base` rewinds the cache over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode._base import Counts, Job, until_stop


@dataclass(frozen=True)
class Greedy:
    """Always the likeliest token.

    Attributes:
        interval: Tokens between two readbacks.
    """

    interval: int = 8

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of ids: one, then `interval` at a time."""
        pending, base, left = list(job.prompt), job.base, job.max_tokens
        count = 1
        while left > 0:
            issued = backend.greedy(pending, base, min(count, left))
            counts.readbacks += 1
            counts.forwards += len(issued) - (base == job.base)  # the first one is the prompt's
            base += len(pending) + len(issued) - 1
            delivered, ended = until_stop(issued, job.stop_ids)
            counts.wasted += len(issued) - len(delivered)
            yield delivered
            if ended:
                return
            left -= len(issued)
            pending, count = [issued[-1]], self.interval
