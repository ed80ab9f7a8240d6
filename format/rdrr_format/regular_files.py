"""Opening files of strangers: regular files only, and no more bytes than asked for.

Opening a pipe waits for somebody to write into it, and a device never ends, so what a path leads to
is looked at after it was opened and before anything is read. A map of a file ends the process when
the file is cut short later; `read_span` copies instead, for files that are not trusted to stand
still.
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

_UNSTATED = 1 << 16
"""Bytes that are read of a file that states no size."""

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading, without waiting for anybody.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most: int) -> bytes:
    """The whole content of a file.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        OSError: It cannot be read, or is no regular file.
        FormatError: It has more bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Some files of the system state no size, so what is there is what counts.
        content = b"" if size > most else file.read(min(most, max(size, _UNSTATED)) + 1)
        if size <= most and len(content) <= most and not file.read(1):
            return content
    raise FormatError(
        "the file is too large",
        where=path,
        expected=f"at most {most} bytes",
        found=f"{size} bytes" if size > most else "more",
    )


def map_regular(
    path: Path, dtype: npt.DTypeLike, offset: int, shape: Sequence[int]
) -> npt.NDArray[Any]:
    """Values of a file as a read-only map.

    Args:
        path: The file.
        dtype: Of the values.
        offset: Their first byte.
        shape: Their shape, which holds at least one.

    Raises:
        OSError: It cannot be opened, or is no regular file.
        ValueError: The file ends before.
    """
    with open_regular(path) as file:
        return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=tuple(shape))


def read_span(path: Path, offset: int, size: int) -> npt.NDArray[np.uint8]:
    """A copy of some bytes of a file, fewer where it ends before.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    with open_regular(path) as file:
        left = max(0, os.fstat(file.fileno()).st_size - offset)
        content = np.empty(min(size, left), np.uint8)
        file.seek(offset)
        return content[: file.readinto(content.data) if content.size else 0]
