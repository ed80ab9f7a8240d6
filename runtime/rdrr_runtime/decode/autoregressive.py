"""Autoregressive decoding: one token per forward pass, read back every few tokens.

The first token is read back at once, to keep the time to first token short. From then on the tokens
are read back in groups, whose size is the readback interval (see `interval`).

Where the backend accepts passes whose input tokens the host does not know yet, a few passes of the
next group are submitted before a group is read back. The device then has work while the host reads
the ids, looks for the end of the sequence and submits the rest of the next group. Only a few passes
run ahead, because the host sees an end-of-text token only when it reads its group: the passes
submitted after that token are wasted. They do no harm, since the next generation begins at its own
`base` and so rewinds the cache.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.interval import Interval, ReadbackInterval
from rdrr_runtime.decode.strategy import Strategy

if TYPE_CHECKING:
    from rdrr_runtime.decode.chooser import Chooser


@dataclass(frozen=True)
class Autoregressive(Strategy):
    """The strategy that decodes one token per forward pass.

    Attributes:
        interval: Tokens between two readbacks, or `auto`; 1 is used where the host takes part in
            the choice of every token.
        ahead: Passes to submit before the ids of the previous ones are read back, where the backend
            can run ahead; None for as many as the backend recommends.
        clock: Returns the time in seconds, for the interval `auto`.
    """

    interval: Interval = 8
    ahead: int | None = None
    clock: Callable[[], float] = field(default=time.perf_counter, compare=False)

    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield groups of ids: first a single id, then as many as the interval says."""
        stream = chooser.stream(job.prompt, job.base, interval=self.interval, ahead=self.ahead)
        interval, max_tokens = ReadbackInterval(stream.interval), job.max_tokens
        submitted = delivered = 0
        ends = deque([1])  # number of tokens at the end of each group that is not read back yet
        try:
            while True:
                began = self.clock()
                # The whole oldest group is submitted, then `ahead` passes of later groups.
                goal = min(ends[0] + (stream.ahead if delivered else 0), max_tokens)
                while submitted < goal:
                    if submitted == ends[-1]:
                        ends.append(min(submitted + interval.tokens, max_tokens))
                    passes = min(ends[-1], goal) - submitted
                    stream.feed.submit(passes)
                    _count(counts, passes - (not submitted))  # the first pass is the prefill
                    submitted += passes
                    if submitted == ends[-1]:
                        stream.feed.fence()
                ids = chooser.deliver(stream.collect())
                if delivered:  # the first group took the prefill's time
                    interval.observe(ends[0] - delivered, self.clock() - began)
                counts.readbacks += 1
                delivered += len(ids)
                yield ids
                if chooser.ended or ends.popleft() == max_tokens:
                    return
                if not ends:
                    ends.append(min(submitted + interval.tokens, max_tokens))
        finally:
            counts.wasted += submitted - delivered
            counts.wasted_rows += submitted - delivered


def _count(counts: Counts, passes: int) -> None:
    counts.forwards += passes
    counts.rows += passes
