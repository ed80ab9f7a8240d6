"""What torch computes with: a device's memory, and as many threads as a product can use.

Torch splits each product over all of its threads and waits for the slowest. Where other programs
use the same cores, that wait takes far longer than the product of a small matrix: a model with 256
dimensions generated 20 times as many tokens per second with one thread as with two.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

THREAD_MACS = 1 << 23
"""Multiply-accumulate operations that justify a thread.

They take one core about half a millisecond, or the time of reading 32 MiB of weights once.
"""


def memory_of(device: str) -> int:
    """Return the bytes of memory that a device of torch has in all, whoever uses them."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    if not hasattr(os, "sysconf"):  # Windows, which does not say it to Python
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def threads_for(macs: int, available: int) -> int:
    """Return the number of threads for a product.

    Args:
        macs: Multiply-accumulate operations of the product.
        available: Threads that torch may use at most.
    """
    return max(1, min(available, macs // THREAD_MACS))


@contextmanager
def limited_threads(macs: int) -> Iterator[None]:
    """Limit torch's threads within a `with` block to the number that a typical product justifies.

    Args:
        macs: Multiply-accumulate operations of a typical product in the block.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads_for(macs, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
