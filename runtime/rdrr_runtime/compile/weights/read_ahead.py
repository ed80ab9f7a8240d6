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
from rdrr_device.mapped_buffers import MappedBuffer, MappedBuffers

READS_AHEAD = 8
"""Reads that are begun before their result is needed; each is of at most 16 MiB."""

MAX_READERS = 4
"""Most threads that read, on a machine with as many processors."""

MAPPED_BUFFERS = READS_AHEAD
"""Mapped buffers that reads take turns with: the last two are what the device copies from."""

READS_KEPT = 2
"""Results that are kept after their use, until the caller has let go of them. A thread then gives
them up, since unmapping the pages takes half as long as copying them."""

Bytes = npt.NDArray[np.uint8]
Read = Callable[[], Bytes]


@contextmanager
def reading_ahead(
    reads: Iterable[Read], buffers: MappedBuffers | None = None
) -> Iterator[Iterator[Bytes]]:
    """Call functions in threads and yield an iterator over their results, in order.

    The iterator raises what a function raises. At the end of the `with` block no thread runs.

    Args:
        reads: The functions.
        buffers: Where the results are copied to; each is then valid until the next is asked for.
    """
    pool = ThreadPoolExecutor(min(MAX_READERS, os.cpu_count() or 1), "read")
    try:
        if buffers is None:
            yield _in_order(pool, iter(reads))
        else:
            yield _in_buffers(pool, iter(reads), buffers)
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


def _in_buffers(
    pool: ThreadPoolExecutor, reads: Iterator[Read], buffers: MappedBuffers
) -> Iterator[Bytes]:
    begun: deque[tuple[Future[Bytes], MappedBuffer]] = deque()
    for read in reads:
        buffer = buffers.take()
        begun.append((pool.submit(_copied, read, buffer.content), buffer))
        if len(begun) == buffers.most - 2:
            yield from _released(buffers, *begun.popleft())
    while begun:
        yield from _released(buffers, *begun.popleft())


def _released(
    buffers: MappedBuffers, content: Future[Bytes], buffer: MappedBuffer
) -> Iterator[Bytes]:
    """Yield the content of a buffer, and then give the buffer back."""
    yield content.result()
    buffers.release(buffer)


def _copied(read: Read, memory: Bytes) -> Bytes:
    """Return a copy of the result of a read in some memory, if there is room for it."""
    content = read()
    if content.nbytes > memory.nbytes:
        return content
    copy = memory[: content.nbytes].reshape(content.shape)
    np.copyto(copy, content)
    return copy


def _touched(read: Read) -> Bytes:
    """Return the result of a read whose pages are all in memory."""
    content = read()
    if isinstance(content, np.memmap) and content.size:
        content.reshape(-1)[:: mmap.PAGESIZE].max()
    return content
