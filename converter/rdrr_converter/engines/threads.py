"""Threads of this process. Codecs release the interpreter's lock, so threads are enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from rdrr_converter.engines._base import Item, Result, map_in_order

ITEMS_PER_WORKER = 2
"""Items under way for each thread: one that is worked on and one that waits."""


class ThreadEngine:
    """An engine of a fixed number of threads."""

    def __init__(self, pool: ThreadPoolExecutor, workers: int) -> None:
        self._pool, self._limit = pool, ITEMS_PER_WORKER * workers

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """As `Engine.map`."""

        def submit(item: Item) -> Future[Result]:
            return self._pool.submit(function, item)

        return map_in_order(items, submit, Future.result, self._limit)


@contextmanager
def open_engine(workers: int, address: str | None = None) -> Iterator[ThreadEngine]:
    """Threads that end with the block; what was not begun then is not begun any more."""
    del address
    pool = ThreadPoolExecutor(workers)
    try:
        yield ThreadEngine(pool, workers)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
