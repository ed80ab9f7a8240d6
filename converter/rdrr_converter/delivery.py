"""Where a package goes: a folder that is renamed into place, or objects with the manifest last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rdrr_format.errors import UsageError
from rdrr_format.locations import is_url, local_path
from rdrr_format.shards import ShardInfo
from rdrr_format.stores import LocalStore, Store

from rdrr_converter.destination import check_destination, complete_or_nothing, was_interrupted
from rdrr_converter.journal import Fingerprint, Journal, finished_shards
from rdrr_converter.object_destination import check_url, manifest_last


@dataclass(frozen=True)
class Target:
    """Where a package is to be, and what may happen to what is there.

    Attributes:
        source: The checkpoint, which is never replaced: a path or a URL.
        destination: The folder: a path or a URL.
        overwrite: Replace a package.
        resume: Go on with what a killed conversion left.
    """

    source: str | Path
    destination: str | Path
    overwrite: bool
    resume: bool

    @property
    def place(self) -> str | Path:
        """The destination, as a path where it is one."""
        place = self.destination
        return os.fspath(place) if is_url(place) else local_path(place)

    def check(self) -> None:
        """Refuse the destination before any work is done.

        Raises:
            UsageError: Nothing can be resumed there.
            StoreError: It cannot be written to, or exists and may not be replaced.
        """
        place = self.place
        if isinstance(place, Path):
            if not (self.resume and was_interrupted(place)):
                self.check_folder(place)
            return
        if self.resume:
            raise UsageError("`resume` continues conversions to folders only", found=place)
        check_url(os.fspath(self.source), place, overwrite=self.overwrite)

    def check_folder(self, folder: Path) -> None:
        """Refuse a folder.

        Raises:
            StoreError: It exists and may not be replaced.
        """
        source = None if is_url(self.source) else local_path(self.source)
        check_destination(source, folder, overwrite=self.overwrite)


@dataclass(frozen=True)
class Delivery:
    """A package in the making.

    Attributes:
        store: Where its files go, the manifest last.
        done: Shards that are there already.
        finished: To be called with every shard that is written.
    """

    store: Store
    done: tuple[ShardInfo, ...] = ()
    finished: Callable[[ShardInfo], None] | None = None


@contextmanager
def delivery(target: Target, made: Fingerprint, threads: int, algorithm: str) -> Iterator[Delivery]:
    """Somewhere to write, which is a package if the block ends without an error.

    Args:
        target: Where.
        made: What decides the package's bytes.
        threads: That look over what a killed conversion left.
        algorithm: Of the shards' hashes.

    Raises:
        StoreError: It cannot be written, or holds an unfinished conversion of something else.
    """
    place = target.place
    if not isinstance(place, Path):
        with manifest_last(place) as store:
            yield Delivery(store)
        return
    with complete_or_nothing(place, resume=target.resume) as work:
        target.check_folder(place)
        done = finished_shards(work.journal, work.package, made, threads, algorithm)
        with Journal(work.journal, work.package, made, done) as journal:
            yield Delivery(LocalStore(work.package), done, journal.record)
