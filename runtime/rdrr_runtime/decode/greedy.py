"""Greedy decoding with the argmax on the device, read back as `_interval` tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.interval import AHEAD, feed_of, in_intervals


@dataclass(frozen=True)
class Greedy:
    """Always the likeliest token.

    Attributes:
        interval: Tokens between two readbacks.
        ahead: Passes that the device is given before a readback, if it takes any.
    """

    interval: int = 8
    ahead: int = AHEAD

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of ids: one, then `interval` at a time."""
        feed, ahead = feed_of(backend, job, backend.greedy, self.ahead)
        return in_intervals(feed, job, counts, self.interval, ahead)
