"""Notice that quantizers are being compiled, so that a command can say why it waits.

The searches of the quantizers are compiled on first use, which takes about ten seconds, and are
kept in a cache afterwards (see `compiled`). This module says when that happens. It does not import
numba, so it can be used around a conversion that may never quantize.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOGGER = logging.getLogger(__name__)


def announce_compilation(function: str) -> None:
    """Log, at level INFO, that a function is about to be compiled because no cache holds it."""
    _LOGGER.info("compiling %s", function)


@contextmanager
def compilation_reported(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` when the first quantizer is compiled within the `with` block.

    It is called at most once, from the thread that compiles, and not at all where every function
    that is used comes from the cache. Workers of a Ray cluster compile in processes of their own
    and are not noticed.

    Args:
        callback: Called without arguments, before the compilation begins.
    """
    listener = _Once(callback)
    level = _LOGGER.level
    _LOGGER.addHandler(listener)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(listener)
        _LOGGER.setLevel(level)


class _Once(logging.Handler):
    """A handler that passes its first record on to a callback; `handle` holds a lock meanwhile."""

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback: Callable[[], None] | None = callback

    def emit(self, record: logging.LogRecord) -> None:
        """Call the callback, the first time."""
        del record
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
