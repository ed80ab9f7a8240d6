"""Token streams: the tokens of a generation, one forward pass each.

A stream hides whether the backend accepts passes ahead of readback (a feed) or runs passes and
reads their ids in one blocking call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rdrr_runtime.backend import Feed
from rdrr_runtime.decode.base import ChosenTokens
from rdrr_runtime.decode.interval import Interval

BlockingCall = Callable[[Sequence[int], int, int], list[int]]
"""Runs ids after `base` cached tokens and returns `count` new ids, as `Backend.greedy` does."""


@dataclass(frozen=True)
class Stream:
    """The tokens of a generation and how they are to be read back.

    Attributes:
        feed: Submits passes and returns their ids.
        read: Turns the ids that were read back into chosen tokens, with their log-probabilities
            where these are recorded.
        interval: Tokens between two readbacks, or `auto`; 1 where the host must see each token
            before the next pass, whatever the strategy requested.
        ahead: Passes that may be submitted before the ids of earlier passes are read back.
    """

    feed: Feed
    read: Callable[[list[int]], ChosenTokens]
    interval: Interval
    ahead: int

    def collect(self) -> ChosenTokens:
        """Wait for the oldest fence and return its tokens."""
        return self.read(self.feed.collect()[0])


class BlockingFeed:
    """A feed over a backend that runs passes and reads their ids back in one call.

    Nothing runs ahead: the passes run when their ids are collected.

    Args:
        run: The blocking call of the backend.
        ids: Token ids that the first pass runs.
        base: Tokens already in the cache.
    """

    def __init__(self, run: BlockingCall, ids: Sequence[int], base: int) -> None:
        self._run = run
        self._pending = ids
        self._base = base
        self._count = 0

    def submit(self, count: int) -> None:
        """Note that `count` further ids are wanted."""
        self._count += count

    def fence(self) -> None:
        """Do nothing: the next `collect` returns all ids submitted so far."""

    def collect(self) -> list[list[int]]:
        """Run the passes and return their ids."""
        ids = self._run(self._pending, self._base, self._count)
        self._base += len(self._pending) + len(ids) - 1
        self._pending, self._count = ids[-1:], 0
        return [ids]
