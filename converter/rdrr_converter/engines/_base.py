"""The interface of engines, which run functions concurrently without knowing what they do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from rdrr_format.errors import ConversionError

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")


class WorkerError(ConversionError):
    """A failure of the workers rather than of the data, so that trying again makes sense."""


class Engine(Protocol):
    """An executor that applies a function to many items concurrently."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in the order of the items.

        Only a few items are in flight at a time, which bounds memory: the next item is submitted
        when a result is taken.
        """


def map_in_order(
    items: Iterable[Item],
    submit: Callable[[Item], Handle],
    result: Callable[[Handle], Result],
    limit: int,
) -> Iterator[tuple[Item, Result]]:
    """Implement `Engine.map` for any executor that returns a handle for each submitted item.

    Args:
        items: The items.
        submit: Submits one item and returns its handle.
        result: Waits for a handle and returns its result.
        limit: Maximum number of items in flight.
    """
    waiting: deque[tuple[Item, Handle]] = deque()

    def first() -> tuple[Item, Result]:
        item, handle = waiting.popleft()
        return item, result(handle)

    for item in items:
        waiting.append((item, submit(item)))
        if len(waiting) >= limit:
            yield first()
    while waiting:
        yield first()
