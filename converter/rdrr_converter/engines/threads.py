"""The engine of threads in this process; threads suffice because the codecs release the GIL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from rdrr_converter.engines._base import Item, Result, map_in_order

ITEMS_PER_WORKER = 2
"""Items in flight per thread: one being processed and one waiting."""


class ThreadEngine:
    """An engine with a fixed number of threads."""

    def __init__(self, pool: ThreadPoolExecutor, workers: int) -> None:
        self._pool, self._limit = pool, ITEMS_PER_WORKER * workers

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """See `Engine.map`."""

        def submit(item: Item) -> Future[Result]:
            return self._pool.submit(function, item)

        return map_in_order(items, submit, Future.result, self._limit)


@contextmanager
def open_engine(workers: int, address: str | None = None) -> Iterator[ThreadEngine]:
    """Start threads that end with the block; items that have not started by then are dropped."""
    del address
    pool = ThreadPoolExecutor(workers)
    try:
        yield ThreadEngine(pool, workers)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
