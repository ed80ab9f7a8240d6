"""Where a package is written: a folder that is renamed when complete, or an object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rdrr_format.errors import UsageError
from rdrr_format.locations import is_url, local_path, remote_url
from rdrr_format.shards import ShardInfo
from rdrr_format.stores import LocalStore, Store

from rdrr_converter.output.destination import (
    atomic_folder,
    check_destination,
    clear_package,
    was_interrupted,
)
from rdrr_converter.output.journal import Fingerprint, Journal, finished_shards, is_of_same
from rdrr_converter.output.object_destination import check_url, manifest_last


@dataclass(frozen=True)
class Target:
    """The destination of a conversion, and what may be done with what exists there.

    Attributes:
        source: The checkpoint, a path or a URL, which is never replaced.
        destination: The folder of the package, a path or a URL.
        overwrite: Whether an existing package may be replaced.
        resume: Whether to refuse to start again where an interrupted conversion had other options.
    """

    source: str | Path
    destination: str | Path
    overwrite: bool
    resume: bool

    @property
    def location(self) -> str | Path:
        """The destination as a `Path`, or as a string if it is a URL.

        Raises:
            UsageError: The path is not valid on any file system, or the URL has a wrong form.
        """
        location = self.destination
        return remote_url(location) if is_url(location) else local_path(location)

    def check(self) -> None:
        """Check the destination before any work is done.

        Raises:
            UsageError: A conversion to this destination cannot be resumed.
            StoreError: The destination cannot be written, or exists and may not be replaced.
        """
        location = self.location
        if isinstance(location, Path):
            if not (self.resume and was_interrupted(location)):
                self.check_folder(location)
            return
        if self.resume:
            raise UsageError(
                "`resume` works with folders only, not with object stores", found=location
            )
        check_url(os.fspath(self.source), location, overwrite=self.overwrite)

    def check_folder(self, folder: Path) -> None:
        """Check a destination that is a folder.

        Raises:
            StoreError: The folder exists and may not be replaced.
        """
        source = None if is_url(self.source) else local_path(self.source)
        check_destination(source, folder, overwrite=self.overwrite)


@dataclass(frozen=True)
class PackageOutput:
    """A package that is being written.

    Attributes:
        store: Store for its files; the manifest must be written last.
        done: Shards that an interrupted conversion has left and that are reused.
        finished: Callback for every shard that is written.
    """

    store: Store
    done: tuple[ShardInfo, ...] = ()
    finished: Callable[[ShardInfo], None] | None = None


@contextmanager
def open_output(
    target: Target, fingerprint: Fingerprint, threads: int, algorithm: str
) -> Iterator[PackageOutput]:
    """Open the destination; the package appears there if the block ends without an error.

    Args:
        target: The destination.
        fingerprint: Fingerprint of the conversion.
        threads: Number of threads that verify the shards of an interrupted conversion.
        algorithm: Hash algorithm of the shards.

    Raises:
        StoreError: The destination cannot be written, or, with `resume`, holds an unfinished
            conversion of another source or with other options.
    """
    location = target.location
    if not isinstance(location, Path):
        with manifest_last(location) as store:
            yield PackageOutput(store)
        return
    with atomic_folder(location, keep=True, resume=target.resume) as staging:
        target.check_folder(location)
        if not target.resume and not is_of_same(staging.journal, fingerprint):
            clear_package(staging)
        done = finished_shards(staging.journal, staging.package, fingerprint, threads, algorithm)
        with Journal(staging.journal, staging.package, fingerprint, done) as journal:
            yield PackageOutput(LocalStore(staging.package), done, journal.record)
