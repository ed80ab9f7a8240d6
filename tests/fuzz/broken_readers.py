"""Parsers with one fault each, with cases that trigger it and without, to test the campaign."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from fuzz.readers import Reader
from fuzz.targets import Target
from hypothesis import strategies as st
from rdrr_format.errors import FormatError

MARK = b"!"
"""A case that contains this mark triggers the fault."""


def _never_ends() -> None:
    while True:
        pass


def _waits() -> None:
    threading.Event().wait()


def _dies() -> None:
    ctypes.string_at(0)


def _takes_memory() -> None:
    bytes(4 << 30)


def _raises() -> None:
    raise KeyError("x")


class _Panic(BaseException):
    """A panic as extension modules raise it: not an `Exception`."""


def _panics() -> None:
    raise _Panic("index out of bounds")


def _warns() -> None:
    warnings.warn("overflow", RuntimeWarning, stacklevel=1)


def _talks() -> None:
    raise _LongError("x" * 5000)


def _obeys() -> None:
    raise _LongError("\x1b[2J")


class _LongError(FormatError):
    """An error that neither shortens nor escapes its message."""

    def __init__(self, message: str) -> None:
        self._given = message
        super().__init__(message)

    def line(self) -> str:
        """Return the message as it was given."""
        return self._given


def _exits() -> None:
    os._exit(3)


FAULTS: Mapping[str, tuple[Callable[[], None], str]] = {
    "never ends": (_never_ends, "took too long"),
    "waits": (_waits, "waited too long"),
    "dies": (_dies, "died of SIGSEGV"),
    "takes memory": (_takes_memory, "MemoryError"),
    "raises": (_raises, "KeyError"),
    "panics": (_panics, "_Panic"),
    "warns": (_warns, "RuntimeWarning"),
    "talks": (_talks, "a line of 5000 characters"),
    "obeys": (_obeys, "a line of 4 characters"),
    "exits": (_exits, "ended without a word"),
}
"""For each fault, the function that causes it and words of the report that it must give."""


class Broken(Reader):
    """A reader that refuses every case, except that a case with the mark triggers a fault.

    Args:
        folder: An empty folder.
        fault: The function that causes the fault.
    """

    def __init__(self, folder: Path, fault: Callable[[], None]) -> None:
        super().__init__(folder)
        self._fault = fault

    def __call__(self, case: bytes) -> None:
        if MARK in case:
            self._fault()
            time.sleep(0)
        raise FormatError("refused", found=case)


def target(fault: Callable[[], None], *, marked: bool) -> Target:
    """Return a broken parser with cases that trigger its fault, or with cases that do not."""
    sound = st.binary(min_size=1, max_size=4).map(lambda case: case.replace(MARK, b"?"))
    cases = sound.map(lambda case: case + MARK) if marked else sound
    return Target(lambda folder: Broken(folder, fault), (), cases)
