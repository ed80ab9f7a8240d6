"""Tokens one after the other: feeds that run ahead of readback, and backends without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rdrr_runtime.backend import Feed
from rdrr_runtime.decode.base import ChosenTokens
from rdrr_runtime.decode.interval import Interval

BlockingCall = Callable[[Sequence[int], int, int], list[int]]
"""Runs ids from a base on and returns a number of new ones, as `Backend.greedy` does."""


@dataclass(frozen=True)
class Stream:
    """A feed of a generation's tokens.

    Attributes:
        feed: Where ids come from.
        read: Makes of new ids what was chosen.
        interval: Tokens between two readbacks, or `auto`; 1 where the host must see each token
            before the next pass, whatever the strategy requested.
        ahead: Passes that may be submitted before the ids before them are read.
    """

    feed: Feed
    read: Callable[[list[int]], ChosenTokens]
    interval: Interval
    ahead: int

    def collect(self) -> ChosenTokens:
        """Wait for the ids of the oldest fence."""
        return self.read(self.feed.collect()[0])


class BlockingFeed:
    """A feed of a backend that runs passes and reads their ids in one call; nothing runs ahead.

    Args:
        run: The call.
        ids: What it begins with.
        base: Tokens already in the cache.
    """

    def __init__(self, run: BlockingCall, ids: Sequence[int], base: int) -> None:
        self._run = run
        self._pending = ids
        self._base = base
        self._count = 0

    def submit(self, count: int) -> None:
        """Remember to give `count` further ids."""
        self._count += count

    def fence(self) -> None:
        """Do nothing: the ids to be collected next are those."""

    def collect(self) -> list[list[int]]:
        """Run the passes and return their ids."""
        ids = self._run(self._pending, self._base, self._count)
        self._base += len(self._pending) + len(ids) - 1
        self._pending, self._count = ids[-1:], 0
        return [ids]
