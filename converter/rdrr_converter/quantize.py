"""Encoding chunks on several threads, handed on in storage order.

Codecs release the interpreter's lock in their loops, so threads are enough. Only a few chunks
are in flight, which bounds memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS

from rdrr_converter.plan import PlannedTensor
from rdrr_converter.transforms import Chunk, chunks, read_chunk, stored_rows

Bytes = npt.NDArray[np.uint8]


def encode_chunk(tensor: PlannedTensor, chunk: Chunk) -> Bytes:
    """The stored bytes of a chunk."""
    if tensor.is_copied:
        blocks = stored_rows(tensor.sources, chunk.first, chunk.first + chunk.count)
        return np.ascontiguousarray(blocks).reshape(-1)
    rows = read_chunk(tensor, chunk)
    return np.ascontiguousarray(CODECS[tensor.dtype.name].quantize(rows)).reshape(-1)


def encoded(
    tensors: Sequence[PlannedTensor], workers: int
) -> Iterator[tuple[PlannedTensor, Chunk, Bytes]]:
    """Every chunk of every tensor, in storage order, whichever thread is done first.

    Args:
        tensors: In storage order.
        workers: Threads.
    """
    work = ((tensor, chunk) for tensor in tensors for chunk in chunks(tensor))
    waiting: deque[tuple[PlannedTensor, Chunk, Future[Bytes]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for tensor, chunk in work:
            waiting.append((tensor, chunk, pool.submit(encode_chunk, tensor, chunk)))
            if len(waiting) > 2 * workers:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _first(
    waiting: deque[tuple[PlannedTensor, Chunk, Future[Bytes]]],
) -> tuple[PlannedTensor, Chunk, Bytes]:
    tensor, chunk, future = waiting.popleft()
    return tensor, chunk, future.result()
