"""Where torch computes a pass: its device, and as many threads as its matrix products can use.

Torch splits each product over all of its threads and waits for the slowest. Where other programs
use the same cores, that wait takes far longer than the product of a small matrix: a model with 256
dimensions generated 20 times as many tokens per second with one thread as with two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

THREAD_MACS = 1 << 23
"""Multiply-accumulate operations that justify a thread.

They take one core about half a millisecond, or the time of reading 32 MiB of weights once.
"""


def default_device(name: str) -> AbstractContextManager[object]:
    """Let new tensors be on a device of torch within a `with` block."""
    # As a context, a device costs time at every call of torch.
    return nullcontext() if name == "cpu" else torch.device(name)


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
