"""The journal of finished shards, which lets a killed conversion be resumed.

It has one JSON object per line: first the fingerprint of the conversion (see `fingerprint`), then
each finished shard with its hash. A line counts only if it is complete, and a shard only if its
bytes still have the hash; anything else that a kill or a power cut has left is written again. The
journal is a file beside the package, never in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from rdrr_format.durable import flush_file, rename_durably
from rdrr_format.errors import FormatError, StoreError
from rdrr_format.shard_reader import ShardReader
from rdrr_format.shards import ShardInfo
from rdrr_format.stores import LocalStore, store_errors

Fingerprint = Mapping[str, Any]
"""JSON values that determine the bytes of a package, by descriptions that messages can use."""


class Journal:
    """A journal that is open for writing, to be used in a `with` block.

    A separate thread flushes shards and lines to disk, because that takes about as long as
    encoding the next shard.

    Args:
        path: Path of the journal.
        folder: Folder of the shards.
        fingerprint: Fingerprint of the conversion.
        finished: Shards that are reused; they become the first entries.
    """

    def __init__(
        self, path: Path, folder: Path, fingerprint: Fingerprint, finished: Sequence[ShardInfo] = ()
    ) -> None:
        self._path, self._folder = path, folder
        self._flushed: list[Future[None]] = []
        with store_errors(path):
            self._file = _start_journal(path, (fingerprint, *map(asdict, finished)))
        self._pool = ThreadPoolExecutor(1)

    def record(self, shard: ShardInfo) -> None:
        """Record a finished shard.

        Raises:
            StoreError: An earlier shard could not be flushed to disk.
        """
        while self._flushed and self._flushed[0].done():
            self._flushed.pop(0).result()
        self._flushed.append(self._pool.submit(self._record, shard))

    def _record(self, shard: ShardInfo) -> None:
        with store_errors(self._folder / shard.filename):
            flush_file(self._folder / shard.filename)
            self._file.write(_line(asdict(shard)))
            _sync(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until everything is on disk; an error of the block takes precedence."""
        self._pool.shutdown(wait=True)
        try:
            self._file.close()
        finally:
            if error is None:
                for flushed in self._flushed:
                    flushed.result()


def finished_shards(
    path: Path, folder: Path, fingerprint: Fingerprint, workers: int, algorithm: str = "sha256"
) -> tuple[ShardInfo, ...]:
    """Return the leading shards of an interrupted conversion that are still intact.

    Args:
        path: Its journal.
        folder: Folder of its shards.
        fingerprint: Fingerprint of the present conversion.
        workers: Number of threads that verify shards.
        algorithm: Hash algorithm of the shards.

    Raises:
        StoreError: The interrupted conversion had another fingerprint.
    """
    if not path.exists():
        return ()
    with store_errors(path):
        entries = _complete_entries(path.read_bytes())
    if not entries:
        return ()
    _check_same(entries[0], fingerprint, path)
    shards = list(_in_order(entries[1:]))
    reader = ShardReader(LocalStore(folder), shards, algorithm)
    with ThreadPoolExecutor(workers) as pool:
        intact = pool.map(partial(_is_intact, reader), range(len(shards)))
        return tuple(
            shard for shard, _ in takewhile(itemgetter(1), zip(shards, intact, strict=True))
        )


def is_of_same(path: Path, fingerprint: Fingerprint) -> bool:
    """Return whether a journal is missing, empty, or of a conversion with this fingerprint."""
    entries = _complete_entries(path.read_bytes()) if path.exists() else []
    return not entries or entries[0] == fingerprint


def count_finished(path: Path) -> int:
    """Return the number of finished shards in a journal; 0 if it does not exist."""
    entries = _complete_entries(path.read_bytes()) if path.exists() else []
    return max(0, len(entries) - 1)


def _in_order(entries: Sequence[Mapping[str, Any]]) -> Iterator[ShardInfo]:
    """Yield the recorded shards up to the first that is missing or unreadable."""
    for index, entry in enumerate(entries):
        try:
            shard = ShardInfo(**entry)
        except TypeError:
            return
        if shard.index != index:
            return
        yield shard


def _is_intact(reader: ShardReader, index: int) -> bool:
    try:
        reader.verify(index)
    except (FormatError, StoreError):
        return False
    return True


def _check_same(recorded: Fingerprint, wanted: Fingerprint, path: Path) -> None:
    for what in (*wanted, *recorded):
        if recorded.get(what) != wanted.get(what):
            expected, other = _difference(recorded.get(what), wanted.get(what))
            raise StoreError(
                f"there is an unfinished conversion with other {what}",
                where=path.parent,
                expected=expected,
                found=other,
                hint="use the source and the options that it began with, or omit `resume` to "
                "start again",
            )


def _difference(recorded: Any, expected: Any) -> tuple[str, str]:
    """Return both values as text, reduced to the entries that differ if they are mappings."""
    if not (isinstance(recorded, Mapping) and isinstance(expected, Mapping)):
        return str(recorded), str(expected)
    keys = [key for key in {**recorded, **expected} if recorded.get(key) != expected.get(key)]
    return tuple(  # type: ignore[return-value]  # it has two parts
        ", ".join(f"{key} {values.get(key)}" for key in keys[:3]) for values in (recorded, expected)
    )


def _complete_entries(content: bytes) -> list[dict[str, Any]]:
    """Parse the lines up to the first incomplete one."""
    entries: list[dict[str, Any]] = []
    for line in content.splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            break
        entries.append(entry)
    return entries


def _start_journal(path: Path, entries: Iterable[Mapping[str, Any]]) -> BinaryIO:
    """Create a journal with these entries and leave it open; it replaces an old one atomically."""
    fresh = path.with_name(path.name + ".new")
    file = fresh.open("wb")
    try:
        for entry in entries:
            file.write(_line(entry))
        _sync(file)
        rename_durably(fresh, path)
    except BaseException:
        file.close()
        raise
    return file


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True).encode() + b"\n"


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
