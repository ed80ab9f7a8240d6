"""Reading tensors in threads, in order and a few reads ahead of the upload.

A read of a local shard is a memory map, whose pages are only found when they are touched. That
takes longer than copying them to the GPU, so the threads touch them, too.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

READS_AHEAD = 8
"""Reads that are begun before their result is needed; each is of at most 16 MiB."""

MAX_READERS = 4
"""Most threads that read, on a machine with as many processors."""

READS_KEPT = 2
"""Results that are kept after their use, until the caller has let go of them. A thread then gives
them up, since unmapping the pages takes half as long as copying them."""

Bytes = npt.NDArray[np.uint8]
Read = Callable[[], Bytes]


@contextmanager
def reading_ahead(reads: Iterable[Read]) -> Iterator[Iterator[Bytes]]:
    """Call functions in threads and yield an iterator over their results, in order.

    The iterator raises what a function raises. At the end of the `with` block no thread runs.
    """
    pool = ThreadPoolExecutor(min(MAX_READERS, os.cpu_count() or 1), "read")
    try:
        yield _in_order(pool, iter(reads))
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(pool: ThreadPoolExecutor, reads: Iterator[Read]) -> Iterator[Bytes]:
    begun: deque[Future[Bytes]] = deque()
    used: deque[Bytes] = deque()
    for read in reads:
        begun.append(pool.submit(_touched, read))
        if len(begun) > READS_AHEAD:
            used.append(begun.popleft().result())
            yield used[-1]
        if len(used) > READS_KEPT:
            pool.submit([used.popleft()].clear)
    while begun:
        yield begun.popleft().result()


def _touched(read: Read) -> Bytes:
    """Return the result of a read whose pages are all in memory."""
    content = read()
    if isinstance(content, np.memmap) and content.size:
        content.reshape(-1)[:: mmap.PAGESIZE].max()
    return content
