"""Stores of a package's files: a local folder, or memory; URLs are in `rdrr_format.remote_stores`.

A store maps plain file names (see `rdrr_format.file_names`) to bytes, so a manifest that names
`../x` is refused. A store does not know what the files mean.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from rdrr_format.durable import rename_durably
from rdrr_format.errors import StoreError
from rdrr_format.file_names import check_link, check_name
from rdrr_format.regular_files import map_regular, read_span, regular_file

Bytes = npt.NDArray[np.uint8]


class Store(Protocol):
    """A flat set of named files."""

    def describe(self) -> str:
        """Return the name of the store for messages: its path or URL."""

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            StoreError: There is no such file.
        """

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Return bytes of a file as uint8; fewer than `size` if the file ends before.

        Raises:
            StoreError: There is no such file, or it cannot be read.
        """

    def open_write(self, name: str) -> BinaryIO:
        """Open a new file for writing; it replaces any file of that name.

        Raises:
            StoreError: The file cannot be written.
        """

    def list(self) -> list[str]:
        """Return the names of all files, sorted."""


@contextmanager
def store_errors(where: object) -> Iterator[None]:
    """Translate errors of the operating system to a `StoreError` of one line.

    Args:
        where: Path or URL to name in the message.
    """
    try:
        yield
    except OSError as error:
        message, hint = _OS_ERRORS.get(error.errno or 0, (error.strerror or str(error), None))
        raise StoreError(message, where=where, hint=hint) from error
    except UnicodeEncodeError as error:
        raise StoreError(
            "the name cannot be written in the system's encoding",
            where=where,
            expected=f"characters of {error.encoding}",
            hint="use a locale with UTF-8, for example LC_ALL=C.UTF-8",
        ) from error


_OS_ERRORS: dict[int, tuple[str, str | None]] = {
    errno.ENOENT: ("no such file or folder", None),
    errno.ENOSPC: ("the disk is full", "free some space and run the command again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space and run the command again"),
    errno.EACCES: ("permission denied", None),
    errno.EROFS: ("the file system is read-only", None),
    errno.EISDIR: ("a folder, where a file was expected", None),
    errno.ENOTDIR: ("a file, where a folder was expected", None),
}


def write_file(store: Store, name: str, content: bytes) -> None:
    """Write a whole file.

    Raises:
        StoreError: The disk is full, or the store refuses.
    """
    with store_errors(f"{store.describe()}/{name}"), store.open_write(name) as file:
        file.write(content)


def read_bounded(store: Store, name: str, max_bytes: int) -> bytes:
    """Return the whole content of a file of at most `max_bytes` bytes.

    Args:
        store: Where the file is.
        name: Name of the file.
        max_bytes: Largest size that is accepted.

    Raises:
        StoreError: The file is larger, or cannot be read.
    """
    size = store.size(name)
    if size > max_bytes:
        raise StoreError(
            "the file is too large",
            where=f"{store.describe()}/{name}",
            expected=f"at most {max_bytes} bytes",
            found=f"{size} bytes",
        )
    return store.read(name, 0, size).tobytes()


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file atomically: at any moment either the old or the new content is there as a whole.

    If the path is a symbolic link its target is replaced, not the link. A pipe or a device is
    written to.

    Args:
        path: The file.
        content: What it shall contain.
        durable: Whether to wait until the content is on the disk, which can take a second. Without
            that, the file may be damaged after a power cut.

    Raises:
        StoreError: The file cannot be written, and the old one is unchanged; or the folder cannot
            be flushed, and after a power cut either of them may be there.
    """
    if path.exists() and not path.is_file():
        with store_errors(path):
            path.write_bytes(content)
        return
    path = path.resolve() if path.is_symlink() else path
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with store_errors(path):
            with partial.open("xb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            if durable:
                rename_durably(partial, path)
            else:
                partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()


class LocalStore:
    """A local folder. Files are read as memory maps, which cost address space rather than memory.

    Args:
        root: The folder; it is created when the first file is written.
        maps: Whether to map files; otherwise they are copied. If another program truncates a mapped
            file, the next access kills this process.
        follow_links: Whether to read the targets of symbolic links wherever they are. Otherwise a
            target must be in the folder, or in the hub's cache that the folder belongs to.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, maps: bool = True, follow_links: bool = False
    ) -> None:
        self.root = Path(root)
        self.maps = maps
        self.follow_links = follow_links

    def describe(self) -> str:
        """Return the folder's path."""
        return str(self.root)

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not exist yet."""
        return self.root / check_name(name)

    def readable(self, name: str) -> Path:
        """Return the path of a file that may be read.

        Raises:
            StoreError: The file is a symbolic link that leads out of the folder, or no regular
                file.
        """
        path = self.path(name)
        with store_errors(path):
            regular_file(path)
            if not self.follow_links:
                check_link(path, self.root)
        return path

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name.

        Raises:
            StoreError: There is something else, such as a pipe or a folder.
        """
        path = self.path(name)
        with store_errors(path):
            return regular_file(path) is not None

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        path = self.readable(name)
        with store_errors(path):
            return path.stat().st_size

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Return bytes of a file, as a read-only memory map or a copy."""
        path = self.readable(name)
        with store_errors(path):
            left = max(0, path.stat().st_size - offset)
            count = left if size is None else min(size, left)
            if count == 0:
                return np.empty(0, np.uint8)
            if not self.maps:
                return read_span(path, offset, count)
            try:
                return map_regular(path, np.uint8, offset, (count,))
            except ValueError as error:
                raise StoreError(
                    "the file was truncated while it was opened", where=path
                ) from error

    def open_write(self, name: str) -> BinaryIO:
        """Open a new file for writing; the folder is created if it is missing."""
        path = self.path(name)
        with store_errors(path):
            self.root.mkdir(parents=True, exist_ok=True)
            return path.open("wb")

    def list(self) -> list[str]:
        """Return the names of all files, sorted."""
        with store_errors(self.root):
            return sorted(entry.name for entry in self.root.iterdir() if entry.is_file())


class MemoryStore:
    """Files in memory, for tests and for packages that are never written to disk.

    Args:
        files: Initial contents by name.
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})

    def describe(self) -> str:
        """Return a fixed name, since memory has no path."""
        return "memory"

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return check_name(name) in self.files

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return len(self._file(name))

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Return bytes of a file."""
        end = None if size is None else offset + size
        return np.frombuffer(self._file(name), np.uint8)[offset:end]

    def open_write(self, name: str) -> BinaryIO:
        """Open a new file for writing; it appears when it is closed."""
        return _MemoryFile(self.files, check_name(name))

    def list(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(self.files)

    def _file(self, name: str) -> bytes:
        content = self.files.get(check_name(name))
        if content is None:
            raise StoreError("no such file", where=name)
        return content


class _MemoryFile(io.BytesIO):
    def __init__(self, files: dict[str, bytes], name: str) -> None:
        super().__init__()
        self._files = files
        self._name = name

    def close(self) -> None:
        if not self.closed:
            self._files[self._name] = self.getvalue()
        super().close()
