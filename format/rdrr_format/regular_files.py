"""Open untrusted files safely: regular files only, and never more bytes than asked for.

Opening a pipe blocks until somebody writes to it, and reading a device may never end. So files are
opened without blocking, and their type is checked before anything is read. Memory maps have a
second risk: when the file is truncated later, an access kills the process (SIGBUS). `read_span`
copies instead, for files that may change.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_format.errors import FormatError

_UNKNOWN_SIZE_READ = 1 << 16
"""Bytes to read from a file whose reported size is 0."""

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def regular_file(path: Path) -> Path | None:
    """Return the path of a regular file, or None if there is nothing of that name.

    Raises:
        OSError: There is something else, such as a pipe, a device or a folder, or the path cannot
            be accessed.
    """
    try:
        _check_mode(path.stat().st_mode, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return path


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, without ever blocking.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_mode(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the whole content of a file.

    Args:
        path: The file.
        max_bytes: Largest size that is accepted.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
        FormatError: The file is larger than `max_bytes`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Files in /proc report a size of 0, so only the bytes that were read count.
        expected = min(max_bytes, max(size, _UNKNOWN_SIZE_READ))
        content = b"" if size > max_bytes else file.read(expected + 1)
        if size <= max_bytes and len(content) <= max_bytes and not file.read(1):
            return content
    raise FormatError(
        "the file is too large",
        where=path,
        expected=f"at most {max_bytes} bytes",
        found=f"{size} bytes" if size > max_bytes else "more",
    )


def map_regular(
    path: Path, dtype: npt.DTypeLike, offset: int, shape: Sequence[int]
) -> npt.NDArray[Any]:
    """Map values of a file into memory, read-only.

    Args:
        path: The file.
        dtype: NumPy type of the values.
        offset: First byte of the values in the file.
        shape: Shape of the array; it must not be empty.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
        ValueError: The file ends before the last value.
    """
    with open_regular(path) as file:
        return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=tuple(shape))


def read_span(path: Path, offset: int, size: int) -> npt.NDArray[np.uint8]:
    """Return a copy of `size` bytes at `offset`, or of fewer if the file ends before.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        left = max(0, os.fstat(file.fileno()).st_size - offset)
        content = np.empty(min(size, left), np.uint8)
        file.seek(offset)
        return content[: file.readinto(content.data) if content.size else 0]
