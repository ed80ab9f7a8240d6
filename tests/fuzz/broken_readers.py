"""Parsers with one fault each, and the same without it: what a campaign must and must not find."""

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
"""A case with this sets off the fault."""


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
    """As an extension module raises it."""


def _panics() -> None:
    raise _Panic("index out of bounds")


def _warns() -> None:
    warnings.warn("overflow", RuntimeWarning, stacklevel=1)


def _talks() -> None:
    raise _LongError("x" * 5000)


def _obeys() -> None:
    raise _LongError("\x1b[2J")


class _LongError(FormatError):
    """Says all that it is given."""

    def __str__(self) -> str:
        return self.message


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
"""Each fault, and the words with which it is reported."""


class Broken(Reader):
    """Refuses every case; one with the mark sets off a fault.

    Args:
        folder: Empty.
        fault: Which.
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
    """A broken parser, and cases that set off its fault or do not."""
    sound = st.binary(min_size=1, max_size=4).map(lambda case: case.replace(MARK, b"?"))
    cases = sound.map(lambda case: case + MARK) if marked else sound
    return Target(lambda folder: Broken(folder, fault), (), cases)
