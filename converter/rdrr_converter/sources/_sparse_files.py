"""Files of weights that are fetched as they are read.

A sparse file of the full size stands where a reader expects the weights, and beside it a hidden
folder says where its bytes come from and which pieces are there. Readers map it like any other
file; before they look at a range they call `ensure_fetched`. The state is on disk, so threads and
processes share it.
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
"""Bytes of a request: large enough that its latency does not count, small enough to hold."""

CONNECTIONS = 4
"""Requests at once for one tensor; one connection does not fill a fast network."""

POLL_SECONDS = 0.005
"""Between looks whether a piece that somebody else fetches is there."""

_ORIGIN = "origin"


def make_sparse_file(store: Store, name: str, folder: Path) -> Path:
    """Make a sparse file for a file of a store; none of its bytes are fetched.

    Args:
        store: Where the bytes are; `describe()` is the URL that opens it again.
        name: The file.
        folder: Where to make it.

    Raises:
        StoreError: The store has no such file, or the folder cannot be written.
    """
    path = folder / name
    size = store.size(name)
    with store_errors(path):
        _side(path).mkdir()
        (_side(path) / _ORIGIN).write_text(store.describe(), encoding="utf-8")
        with path.open("wb") as file:
            file.truncate(size)
        os.utime(path, ns=(0, 0))
    return path


def ensure_fetched(path: Path, offset: int, size: int) -> None:
    """Make sure that a range of a file is there; a range beyond the end is cut.

    Costs one look at the folder for a file that was not laid out.

    Raises:
        StoreError: The bytes cannot be fetched, or the disk is full.
    """
    side = _side(path)
    if not side.is_dir():
        return
    end = min(offset + size, path.stat().st_size)
    wanted = range(offset // PIECE_BYTES, -(-end // PIECE_BYTES))
    missing = [index for index in wanted if not (side / str(index)).exists()]
    if len(missing) == 1:
        _fetch(path, side, missing[0])
    elif missing:
        with ThreadPoolExecutor(min(CONNECTIONS, len(missing))) as pool:
            for _ in pool.map(partial(_fetch, path, side), missing):
                pass


def _side(path: Path) -> Path:
    return path.with_name(f".{path.name}.pieces")


def _fetch(path: Path, side: Path, index: int) -> None:
    """Fetch one piece, unless somebody else did so in the meantime."""
    from filelock import FileLock

    marker = side / str(index)
    with FileLock(side / f"{index}.lock").acquire(poll_interval=POLL_SECONDS):
        if marker.exists():
            return
        start = index * PIECE_BYTES
        wanted = min(PIECE_BYTES, path.stat().st_size - start)
        store = open_store((side / _ORIGIN).read_text(encoding="utf-8"))
        content = store.read(path.name, start, wanted)
        if len(content) != wanted:
            raise SourceError(
                "changed while it was read",
                where=f"{store.describe()}/{path.name}",
                expected=f"{wanted} bytes from byte {start}",
                found=len(content),
            )
        with store_errors(path), path.open("r+b") as file:
            file.seek(start)
            file.write(content.data)
        # The time of change says whether a source is the same; fetching does not change it.
        os.utime(path, ns=(0, 0))
        marker.touch()
