"""The loop that greedy decoding and sampling on the device share: ids read back every few tokens.

The first token is read at once, for the sake of the time to first token. An end-of-text inside an
interval is seen when the interval is read; the passes after it were wasted, and the next
generation's `base` rewinds the cache over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rdrr_runtime.decode._base import Counts, Job, until_stop

Issue = Callable[[Sequence[int], int, int], list[int]]
"""Runs ids from a base on and returns so many new ones, as `Backend.greedy` does."""


def in_intervals(issue: Issue, job: Job, counts: Counts, interval: int) -> Iterator[list[int]]:
    """Runs of ids: one, then `interval` at a time."""
    pending, base, left = list(job.prompt), job.base, job.max_tokens
    count = 1
    while left > 0:
        issued = issue(pending, base, min(count, left))
        counts.readbacks += 1
        passes = len(issued) - (base == job.base)  # the first one is the prompt's
        counts.forwards += passes
        counts.rows += passes
        base += len(pending) + len(issued) - 1
        delivered, ended = until_stop(issued, job.stop_ids)
        counts.wasted += len(issued) - len(delivered)
        counts.wasted_rows += len(issued) - len(delivered)
        yield delivered
        if ended:
            return
        left -= len(issued)
        pending, count = [issued[-1]], interval
