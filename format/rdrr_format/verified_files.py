"""A cache of files whose hashes were verified, kept in the user's cache folder.

The cache is one JSON file, `rdrr/verified.json`, oldest entry first. If it is missing or damaged,
files are hashed again; if it cannot be written, nothing is added and that is not an error. The file
is replaced as a whole, under a lock. No load waits until it is on the disk: that took one 0.7 s.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rdrr_format.errors import FormatError, StoreError
from rdrr_format.file_state import FileState
from rdrr_format.regular_files import read_regular
from rdrr_format.stores import replace_file
from rdrr_format.user_folders import cache_folder

FORMAT = "rdrr-verified-1"
MAX_FILES = 8192
"""Largest number of files in the cache; in shards of 64 MiB that is 512 GiB."""

_MAX_BYTES = 64 << 20
_WAIT_SECONDS = 2.0
_RETRY_SECONDS = 0.01

Entry = tuple[Path, FileState, str]
"""A file, its state when it was hashed, and its hash as `sha256:...`."""


class VerifiedFiles:
    """The cache of files whose hashes were verified.

    Args:
        path: Path of the cache; None for the one in the user's cache folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = cache_folder() / "verified.json" if path is None else path
        self._known = self._read()

    def has(self, path: Path, state: FileState, expected: str) -> bool:
        """Return whether a file in this state is known to have this hash.

        Args:
            path: The file, as a path without symbolic links.
            state: The file's current state.
            expected: Algorithm and hash, as `sha256:...`.
        """
        return self._known.get(str(path)) == _value(state, expected)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add files to the cache, and drop the oldest beyond `MAX_FILES`."""
        if not entries:
            return
        with suppress(OSError, StoreError, ValueError), self._exclusive_lock():
            known = self._read()
            for path, state, digest in entries:
                known.pop(str(path), None)
                known[str(path)] = _value(state, digest)
            kept = dict(list(known.items())[-MAX_FILES:])
            content = json.dumps({"format": FORMAT, "files": kept}, separators=(",", ":"))
            replace_file(self.path, content.encode(), durable=False)
            self._known = kept

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(read_regular(self.path, _MAX_BYTES))
        except (OSError, ValueError, FormatError, RecursionError):
            return {}
        files = data.get("files") if isinstance(data, Mapping) else None
        if not isinstance(files, dict) or data.get("format") != FORMAT:
            return {}
        return files

    @contextmanager
    def _exclusive_lock(self) -> Iterator[None]:
        """Hold an exclusive lock on the cache, on systems with `fcntl`.

        Raises:
            OSError: The folder cannot be created, or another process keeps the lock.
        """
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        try:
            import fcntl
        except ImportError:  # on Windows, two processes that write at once lose the entries of one
            yield
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            end = time.monotonic() + _WAIT_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(_RETRY_SECONDS)
            yield
        finally:
            os.close(descriptor)


def _value(state: FileState, verified: str) -> list[Any]:
    return [*state.as_list(), verified]
