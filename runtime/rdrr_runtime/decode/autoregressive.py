"""Autoregressive decoding: one token a pass, read back every few tokens.

The first token is read at once, for the sake of the time to first token. From then on, where the
backend takes passes whose tokens are not known yet, a few of the next interval's are submitted
before an interval is read, so that the device has work while the host reads, decides and submits
the rest. They are few, because an end-of-text is seen when its interval is read: the passes after
it were wasted, and the next generation's `base` rewinds the cache over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.strategy import Strategy

if TYPE_CHECKING:
    from rdrr_runtime.decode.chooser import Chooser


@dataclass(frozen=True)
class Autoregressive(Strategy):
    """One token after the other.

    Attributes:
        interval: Tokens between two readbacks; 1 where the host has a part in every choice.
        ahead: Passes that the device is given before a readback, if it takes any; None for as many
            as the backend asks for.
    """

    interval: int = 8
    ahead: int | None = None

    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield runs of ids: one, then `interval` at a time."""
        stream = chooser.stream(job.prompt, job.base, interval=self.interval, ahead=self.ahead)
        most, delivered = job.max_tokens, 0
        submitted, fence, end = 0, 1, 1
        try:
            while end <= most:
                goal = min(end + (stream.ahead if delivered else 0), most)
                while submitted < goal:
                    step = min(fence, goal) - submitted
                    stream.feed.submit(step)
                    _count(counts, step - (not submitted))  # the first one is the prompt's
                    submitted += step
                    if submitted == fence:
                        stream.feed.fence()
                        fence = min(fence + stream.interval, most)
                ids = chooser.deliver(stream.collect())
                counts.readbacks += 1
                delivered += len(ids)
                yield ids
                if chooser.ended or end == most:
                    return
                end = min(end + stream.interval, most)
        finally:
            counts.wasted += submitted - delivered
            counts.wasted_rows += submitted - delivered


def _count(counts: Counts, passes: int) -> None:
    counts.forwards += passes
    counts.rows += passes
