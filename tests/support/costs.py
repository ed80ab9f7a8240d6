"""What a refusal may cost: memory, CPU time and the length of its message."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from rdrr_format.errors import RdrrError

MIB = 1 << 20
SECONDS = 5.0
"""Limit of CPU time for a refusal while every allocation is traced."""


@contextmanager
def cheap(most: int) -> Iterator[None]:
    """Fail if the block holds more than `most` allocated bytes at once, or takes too long."""
    tracemalloc.start()
    began = time.process_time()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak / MIB:.1f} MiB"
    assert time.process_time() - began < SECONDS


def refused(kind: type[RdrrError], words: str, most: int, read: Callable[[], object]) -> None:
    with cheap(most), pytest.raises(kind, match=words) as caught:
        read()
    assert len(str(caught.value)) < 2000
