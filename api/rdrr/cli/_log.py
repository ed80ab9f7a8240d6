"""The lines of `-v`: records that the components log, printed on stderr.

The components log through Python's `logging` under the names of their packages. Without `-v`, and
in Python programs that do not configure logging, nothing of this is shown.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COMPONENTS = (
    "rdrr",
    "rdrr_converter",
    "rdrr_device",
    "rdrr_format",
    "rdrr_manifests",
    "rdrr_runtime",
)
CLIENTS = ("aiobotocore", "fsspec", "gcsfs", "s3fs", "urllib3")
"""Clients of object stores, which log their retries; the client of the hub prints its own."""

_LOG = logging.getLogger("rdrr.cli")
_LEVELS = {1: logging.INFO}


def is_verbose() -> bool:
    """Return whether `-v` was given, so that lines take the place of bars and status lines."""
    return _LOG.isEnabledFor(logging.INFO)


@contextmanager
def listening(
    handler: logging.Handler, level: int, names: tuple[str, ...] = COMPONENTS
) -> Iterator[None]:
    """Attach a handler to loggers for the length of a block.

    Args:
        handler: Receives the records, also from other threads.
        level: Lowest level of the records.
        names: Names of the loggers; those below them are included.
    """
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(was)


@contextmanager
def verbose_lines(count: int, write: Callable[[str], None]) -> Iterator[None]:
    """Write a line for each record that is logged in the block, and the total time.

    Args:
        count: How often `-v` was given: 0 prints nothing, 1 prints decisions and stages, 2 or more
            print every step.
        write: Prints a line.
    """
    if not count:
        yield
        return
    handler = _Lines(time.perf_counter(), write)
    with listening(handler, _LEVELS.get(count, logging.DEBUG), (*COMPONENTS, *CLIENTS)):
        try:
            yield
        finally:
            _LOG.info("finished")


class _Lines(logging.Handler):
    """Writes each record as a line with the seconds since the start of the command."""

    def __init__(self, start: float, write: Callable[[str], None]) -> None:
        super().__init__()
        self._start, self._write = start, write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(f"[{time.perf_counter() - self._start:7.2f} s] {record.getMessage()}")
