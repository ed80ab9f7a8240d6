"""Where files of a package live: a folder or memory; URLs are in `rdrr_format.remote_stores`.

A store maps plain file names (see `rdrr_format.file_names`) to bytes: a manifest that asks for
`../x` is refused, whoever wrote it. A store does not know what the files mean.
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
from rdrr_format.file_names import check_name
from rdrr_format.links import check_link
from rdrr_format.regular_files import map_regular, read_span

Bytes = npt.NDArray[np.uint8]


class Store(Protocol):
    """A flat set of named files."""

    def describe(self) -> str:
        """What a message calls the store: its path or URL."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        ...

    def size(self, name: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            StoreError: There is none.
        """
        ...

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Bytes of a file, uint8; fewer than `size` where the file ends before.

        Raises:
            StoreError: There is no such file, or it cannot be read.
        """
        ...

    def open_write(self, name: str) -> BinaryIO:
        """A new file, replacing one of that name.

        Raises:
            StoreError: It cannot be written.
        """
        ...

    def list(self) -> list[str]:
        """Return the names of all files, sorted."""
        ...


@contextmanager
def store_errors(where: object) -> Iterator[None]:
    """Turn operating system errors into one-line `StoreError`s.

    Args:
        where: Path or URL for the message.
    """
    try:
        yield
    except OSError as error:
        message, hint = _OS_ERRORS.get(error.errno or 0, (error.strerror or str(error), None))
        raise StoreError(message, where=where, hint=hint) from error


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


def read_bounded(store: Store, name: str, most: int) -> bytes:
    """The whole content of a file, wherever it is.

    Args:
        store: Where it is.
        name: The file.
        most: Bytes that it may have.

    Raises:
        StoreError: It has more, or cannot be read.
    """
    size = store.size(name)
    if size > most:
        raise StoreError(
            "the file is too large",
            where=f"{store.describe()}/{name}",
            expected=f"at most {most} bytes",
            found=f"{size} bytes",
        )
    return store.read(name, 0, size).tobytes()


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in the place of another, if there is one; at any moment one of the two is whole.

    What a link points to is replaced, not the link; a pipe or a device is written to.

    Raises:
        StoreError: It cannot be written, and what was there before still is; or the folder cannot
            be flushed, and after a power cut either may be there.
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
                file.flush()
                os.fsync(file.fileno())
            rename_durably(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink()


class LocalStore:
    """A folder. Reads are memory maps, so they cost address space rather than memory.

    Args:
        root: The folder; it is made when the first file is written.
        maps: Map files. Otherwise they are copied: a map ends the process where somebody cuts the
            file short while it is used.
        follow_links: Read what a link in the folder leads to wherever that is. Otherwise it has to
            be in the folder too, or in the cache of the hub that the folder is a part of.
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
        """Path of a file, which may not be there yet."""
        return self.root / check_name(name)

    def readable(self, name: str) -> Path:
        """Path of a file that may be read.

        Raises:
            StoreError: It is a link that leads out of the folder.
        """
        path = self.path(name)
        if not self.follow_links:
            with store_errors(path):
                check_link(path)
        return path

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        path = self.path(name)
        with store_errors(path):
            return path.is_file()

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        path = self.readable(name)
        with store_errors(path):
            return path.stat().st_size

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Bytes of a file: a read-only memory map, or a copy."""
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
                raise StoreError("cut short while it was opened", where=path) from error

    def open_write(self, name: str) -> BinaryIO:
        """A new file; the folder is made when needed."""
        path = self.path(name)
        with store_errors(path):
            self.root.mkdir(parents=True, exist_ok=True)
            return path.open("wb")

    def list(self) -> list[str]:
        """Return the names of all files, sorted."""
        with store_errors(self.root):
            return sorted(entry.name for entry in self.root.iterdir() if entry.is_file())


class MemoryStore:
    """Files in memory, for tests and for packages that are never written.

    Args:
        files: Contents to begin with.
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})

    def describe(self) -> str:
        """A fixed word: memory has no path."""
        return "memory"

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return check_name(name) in self.files

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return len(self._file(name))

    def read(self, name: str, offset: int = 0, size: int | None = None) -> Bytes:
        """Bytes of a file."""
        end = None if size is None else offset + size
        return np.frombuffer(self._file(name), np.uint8)[offset:end]

    def open_write(self, name: str) -> BinaryIO:
        """A new file; it appears when it is closed."""
        return _MemoryFile(self.files, check_name(name))

    def list(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(self.files)

    def _file(self, name: str) -> bytes:
        found = self.files.get(check_name(name))
        if found is None:
            raise StoreError("no such file", where=name)
        return found


class _MemoryFile(io.BytesIO):
    def __init__(self, files: dict[str, bytes], name: str) -> None:
        super().__init__()
        self._files = files
        self._name = name

    def close(self) -> None:
        if not self.closed:
            self._files[self._name] = self.getvalue()
        super().close()
