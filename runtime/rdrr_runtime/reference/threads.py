"""How many threads torch gets for a pass: as many as its products are worth.

Torch hands each product to all of its threads and waits for the slowest. Where the cores are shared
with other programs that wait is far longer than the product of a small matrix: tokens of a model
with 256 dimensions came 20 times as fast from one thread as from two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

THREAD_MACS = 1 << 23
"""Multiplications of a product that a further thread is worth: about half a millisecond of one
core, or 32 MiB of weights read once."""


def threads_for(macs: int, most: int) -> int:
    """Return how many threads a product gets.

    Args:
        macs: Its multiplications.
        most: Threads that there are.
    """
    return max(1, min(most, macs // THREAD_MACS))


@contextmanager
def limited_threads(macs: int) -> Iterator[None]:
    """Let torch use at most as many threads as products are worth, for the length of a block.

    Args:
        macs: Multiplications of a typical product in the block.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads_for(macs, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
