"""Hash a local file through a buffer of fixed size.

The file is read rather than mapped: truncating a mapped file kills the process, truncating this one
is an error. Reading and hashing both release the GIL.
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
"""Bytes that are read and hashed at a time; few enough to stay in the processor's cache."""


def hash_file(
    path: Path, algorithm: str, is_stopped: Callable[[], bool] = lambda: False
) -> tuple[FileState, str]:
    """Hash a file and note its state.

    Args:
        path: The file.
        algorithm: A key of `rdrr_format.integrity.ALGORITHMS`.
        is_stopped: Called after each buffer; hashing stops when it returns True.

    Returns:
        The file's state, and the hash in hexadecimal; an empty string if hashing was stopped.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
        ShardError: The file was written to while it was read.
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
    """Return the error for a file that was changed while it was read."""
    return ShardError(
        "the file was changed while it was read",
        where=path,
        hint="load it again when no program writes to it any more",
    )
