"""What the converter asks of whoever does its work; it does not know what the work is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from rdrr_format.errors import ConversionError

Item = TypeVar("Item")
Result = TypeVar("Result")
Handle = TypeVar("Handle")


class WorkerError(ConversionError):
    """Who does the work failed, not the data: trying again makes sense."""


class Engine(Protocol):
    """Applies a function to many things at once."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Each item with its result, in the order of the items, whichever is done first.

        Only a few are under way at a time, which bounds memory: the next is begun when a result
        is taken.
        """
        ...


def map_in_order(
    items: Iterable[Item],
    submit: Callable[[Item], Handle],
    result: Callable[[Handle], Result],
    limit: int,
) -> Iterator[tuple[Item, Result]]:
    """`Engine.map` for anything that gives tickets for its work.

    Args:
        items: What to work on.
        submit: Begins the work on one item.
        result: Waits for it.
        limit: Items under way at most.
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
