"""What of a package is finished, written down as it happens, so that a killed run can go on.

One JSON object a line: first what is being made (see `fingerprint`), then each finished shard
with its hash. A line counts only if it is whole, and a shard only if its bytes still have the
hash; whatever a kill or a power cut left is thus found out and made again. It lies beside the
package, never in it.
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
"""JSON values that decide the package's bytes, by what a person calls them."""


class Journal:
    """A journal that is being written, within a `with` block.

    Shards and lines are flushed to the disk on a thread of their own, since that takes about as
    long as encoding the next shard.

    Args:
        path: Where the journal is.
        folder: Where the shards are.
        fingerprint: What is being made.
        finished: Shards that were found finished; they are written down first.
    """

    def __init__(
        self, path: Path, folder: Path, fingerprint: Fingerprint, finished: Sequence[ShardInfo] = ()
    ) -> None:
        self._path, self._folder = path, folder
        self._flushed: list[Future[None]] = []
        with store_errors(path):
            self._file = _begin(path, (fingerprint, *map(asdict, finished)))
        self._pool = ThreadPoolExecutor(1)

    def record(self, shard: ShardInfo) -> None:
        """Write down a finished shard.

        Raises:
            StoreError: An earlier one could not be flushed.
        """
        while self._flushed and self._flushed[0].done():
            self._flushed.pop(0).result()
        self._flushed.append(self._pool.submit(self._record, shard))

    def _record(self, shard: ShardInfo) -> None:
        with store_errors(self._folder / shard.filename):
            flush_file(self._folder / shard.filename)
            self._file.write(_line(asdict(shard)))
            _to_disk(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait until everything is on the disk; the first error in the block is the one raised."""
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
    """The first shards of an interrupted run whose bytes are still what they were.

    Args:
        path: Its journal.
        folder: Where its shards are.
        fingerprint: What is to be made now.
        workers: Threads.
        algorithm: Of the shards' hashes.

    Raises:
        StoreError: The interrupted run was making something else.
    """
    if not path.exists():
        return ()
    with store_errors(path):
        entries = _whole_entries(path.read_bytes())
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


def _in_order(entries: Sequence[Mapping[str, Any]]) -> Iterator[ShardInfo]:
    """Shards as long as none is missing or unreadable."""
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


def _check_same(found: Fingerprint, wanted: Fingerprint, path: Path) -> None:
    for what in (*wanted, *found):
        if found.get(what) != wanted.get(what):
            expected, other = _difference(found.get(what), wanted.get(what))
            raise StoreError(
                f"an unfinished conversion with other {what} is here",
                where=path.parent,
                expected=expected,
                found=other,
                hint="give the source and options it began with, or omit `resume` to begin anew",
            )


def _difference(found: Any, wanted: Any) -> tuple[str, str]:
    """Two values, or the parts of them that differ."""
    if not (isinstance(found, Mapping) and isinstance(wanted, Mapping)):
        return str(found), str(wanted)
    keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
    return tuple(  # type: ignore[return-value]  # it has two parts
        ", ".join(f"{key} {one.get(key)}" for key in keys[:3]) for one in (found, wanted)
    )


def _whole_entries(content: bytes) -> list[dict[str, Any]]:
    """The objects of all lines before the first that is not whole."""
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


def _begin(path: Path, entries: Iterable[Mapping[str, Any]]) -> BinaryIO:
    """A journal with these lines, open for more; one that was there stands until it is whole."""
    fresh = path.with_name(path.name + ".new")
    file = fresh.open("wb")
    try:
        for entry in entries:
            file.write(_line(entry))
        _to_disk(file)
        rename_durably(fresh, path)
    except BaseException:
        file.close()
        raise
    return file


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True).encode() + b"\n"


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
