"""The hash of a local file, read through a buffer of bounded size.

The file is read rather than mapped, so one that is cut short meanwhile ends in an error and not in
a signal. Both reading and hashing let other threads run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rdrr_format.errors import ShardError
from rdrr_format.file_state import FileState
from rdrr_format.integrity import new_hasher
from rdrr_format.regular_files import open_regular

BUFFER_BYTES = 1 << 20
"""Bytes that are read and hashed at a time; they stay in the processor's cache."""


def hash_file(
    path: Path, algorithm: str, is_stopped: Callable[[], bool] = lambda: False
) -> tuple[FileState, str]:
    """Hash a file.

    Args:
        path: The file.
        algorithm: As of `new_hasher`.
        is_stopped: Asked now and then whether nobody wants the hash any more.

    Returns:
        The file's state, and the hash in hexadecimal; an empty text if it was stopped.

    Raises:
        OSError: It cannot be read, or is no regular file.
        ShardError: It was written to meanwhile.
        FormatError: The algorithm is unknown.
    """
    running = new_hasher(algorithm)
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with open_regular(path) as file:
        before = FileState.of(os.fstat(file.fileno()))
        while count := file.readinto(buffer):
            if is_stopped():
                return before, ""
            running.update(buffer[:count])
        after = FileState.of(os.fstat(file.fileno()))
    if after != before:
        raise changed_meanwhile(path)
    return before, running.hexdigest()


def changed_meanwhile(path: Path) -> ShardError:
    """The error of a file that did not stand still while it was read."""
    return ShardError(
        "the file was changed while it was read",
        where=path,
        hint="load it again when nothing writes to it any more",
    )
