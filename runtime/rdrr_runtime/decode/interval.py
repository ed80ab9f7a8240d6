"""The loop that greedy decoding and sampling on the device share: ids read back every few tokens.

The first token is read at once, for the sake of the time to first token. From then on, where the
backend takes passes whose tokens are not known yet, a few of the next interval's are submitted
before an interval is read, so that the device has work while the host reads, decides and submits
the rest.
They are few, because an end-of-text is seen when its interval is read: the passes after it were
wasted, and the next generation's `base` rewinds the cache over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rdrr_runtime.backend import Feed, FeedingBackend
from rdrr_runtime.decode.base import Counts, Job, until_stop

AHEAD = 2
"""Passes submitted before the ids before them are read: what the device works on meanwhile."""

AtOnce = Callable[[Sequence[int], int, int], list[int]]
"""Runs ids from a base on and returns so many new ones, as `Backend.greedy` does."""


class _AtOnce:
    """A feed of a backend that runs passes and reads their ids in one call; nothing goes ahead.

    Args:
        run: The call.
        job: What it begins with.
    """

    def __init__(self, run: AtOnce, job: Job) -> None:
        self._run = run
        self._pending: Sequence[int] = job.prompt
        self._base = job.base
        self._count = 0

    def submit(self, count: int) -> None:
        """Remember to give so many further ids."""
        self._count += count

    def fence(self) -> None:
        """The ids to be collected next are those."""

    def collect(self) -> list[list[int]]:
        """The ids."""
        ids = self._run(self._pending, self._base, self._count)
        self._base += len(self._pending) + len(ids) - 1
        self._pending, self._count = ids[-1:], 0
        return [ids]


def feed_of(
    backend: object, job: Job, at_once: AtOnce, ahead: int, *, sampled: bool = False
) -> tuple[Feed, int]:
    """The backend's own feed and how far to go ahead in it, or one that cannot go ahead.

    Args:
        backend: What may have feeds.
        job: What the feed begins with.
        at_once: The call where it has none, or nothing is to go ahead.
        ahead: Passes to go ahead.
        sampled: Tokens are sampled.
    """
    if ahead and isinstance(backend, FeedingBackend):
        return backend.feed(job.prompt, job.base, sampled=sampled), ahead
    return _AtOnce(at_once, job), 0


def in_intervals(
    feed: Feed, job: Job, counts: Counts, interval: int, ahead: int = 0
) -> Iterator[list[int]]:
    """Runs of ids: one, then `interval` at a time.

    Args:
        feed: Where they come from.
        job: How many at most, and what ends them.
        counts: Kept up to date.
        interval: Ids that are read together.
        ahead: Passes submitted beyond those that are waited for.
    """
    most, delivered = job.max_tokens, 0
    submitted, fence, end = 0, 1, 1
    try:
        while end <= most:
            goal = min(end + (ahead if delivered else 0), most)
            while submitted < goal:
                step = min(fence, goal) - submitted
                feed.submit(step)
                _count(counts, step - (not submitted))  # the first one is the prompt's
                submitted += step
                if submitted == fence:
                    feed.fence()
                    fence = min(fence + interval, most)
            found, ended = until_stop(feed.collect()[0], job.stop_ids)
            counts.readbacks += 1
            delivered += len(found)
            yield found
            if ended or end == most:
                return
            end = min(end + interval, most)
    finally:
        counts.wasted += submitted - delivered
        counts.wasted_rows += submitted - delivered


def _count(counts: Counts, passes: int) -> None:
    counts.forwards += passes
    counts.rows += passes
