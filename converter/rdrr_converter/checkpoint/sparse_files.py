"""Sparse local files whose bytes are fetched from a store when they are first read.

The sparse file has the full size of the remote one. A hidden folder beside it records where the
bytes come from and which pieces of it, each `PIECE_BYTES` long, have been fetched. Readers map the
file like any other and call `ensure_fetched` before they access a range. All state is on disk, so
threads and processes share it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rdrr_format.errors import SourceError
from rdrr_format.opening import open_store
from rdrr_format.stores import Store, store_errors

PIECE_BYTES = 4 << 20
"""Bytes per request: enough to hide its latency, and few enough to hold in memory."""

CONNECTIONS = 4
"""Concurrent requests for one tensor; one connection does not saturate a fast network."""

POLL_SECONDS = 0.005
"""Seconds between checks whether another thread or process has fetched a piece."""

_ORIGIN = "origin"


def make_sparse_file(store: Store, name: str, folder: Path) -> Path:
    """Create a sparse file for a file of a store, without fetching anything.

    Args:
        store: Where the bytes are; `open_store(store.describe())` must open it again.
        name: Name of the file.
        folder: Local folder for the sparse file.

    Raises:
        StoreError: The store has no such file, or the folder cannot be written.
    """
    path = folder / name
    size = store.size(name)
    with store_errors(path):
        _state_folder(path).mkdir()
        (_state_folder(path) / _ORIGIN).write_text(store.describe(), encoding="utf-8")
        with path.open("wb") as file:
            file.truncate(size)
        os.utime(path, ns=(0, 0))
    return path


def ensure_fetched(path: Path, offset: int, size: int) -> None:
    """Fetch those pieces of a range that are missing; the range is clipped at the end of the file.

    Does nothing for a file that `make_sparse_file` did not create.

    Raises:
        StoreError: The bytes cannot be fetched, or the disk is full.
    """
    state = _state_folder(path)
    if not state.is_dir():
        return
    end = min(offset + size, path.stat().st_size)
    pieces = range(offset // PIECE_BYTES, -(-end // PIECE_BYTES))
    missing = [index for index in pieces if not (state / str(index)).exists()]
    if len(missing) == 1:
        _fetch(path, state, missing[0])
    elif missing:
        with ThreadPoolExecutor(min(CONNECTIONS, len(missing))) as pool:
            for _ in pool.map(partial(_fetch, path, state), missing):
                pass


def _state_folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.pieces")


def _fetch(path: Path, state: Path, index: int) -> None:
    """Fetch one piece, unless another thread or process did so in the meantime."""
    from filelock import FileLock

    marker = state / str(index)
    with FileLock(state / f"{index}.lock").acquire(poll_interval=POLL_SECONDS):
        if marker.exists():
            return
        start = index * PIECE_BYTES
        length = min(PIECE_BYTES, path.stat().st_size - start)
        store = open_store((state / _ORIGIN).read_text(encoding="utf-8"))
        content = store.read(path.name, start, length)
        if len(content) != length:
            raise SourceError(
                "the file was changed while it was read",
                where=f"{store.describe()}/{path.name}",
                expected=f"{length} bytes from byte {start}",
                found=len(content),
            )
        with store_errors(path), path.open("r+b") as file:
            file.seek(start)
            file.write(content.data)
        # The modification time identifies a source, so fetching must not change it.
        os.utime(path, ns=(0, 0))
        marker.touch()
