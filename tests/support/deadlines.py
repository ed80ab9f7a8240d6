"""How long tests wait for something that another thread or process does.

A deadline only ends a test that hangs. On a laptop that is busy with other work, with an empty
cache of shaders, a command may take ten times as long as here, so no deadline is shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS = 900
"""Seconds after which a thread or a process is considered to hang."""


def until(holds: Callable[[], bool], failure: str) -> None:
    """Wait until a condition holds that another thread or process brings about.

    Args:
        holds: The condition.
        failure: What is wrong if it never holds.
    """
    end = time.monotonic() + HANGS
    while not holds():
        assert time.monotonic() < end, failure
        time.sleep(0.001)
