"""A folder that appears under its name only when it is complete.

Everything is written into a hidden staging folder beside it, flushed to disk and renamed. If
anything fails, whatever had the name before is still there. A killed or interrupted conversion
leaves the staging folder behind if shards are finished; the next conversion to the same name
resumes from it or starts again. After other errors it is removed.

    .NAME.partial/
      lock            locked while a conversion works here
      package/        the package that will become NAME
      journal.jsonl   the shards that are finished (see `journal`)
      old/            the previous NAME, between the two renames that replace it
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.durable import flush_file, flush_folder, make_folder
from rdrr_format.errors import RdrrError, StoreError
from rdrr_format.stores import store_errors
from rdrr_manifests.models import MANIFEST_NAME

from rdrr_converter.engines import WorkerError
from rdrr_converter.output.journal import count_finished

if TYPE_CHECKING:
    from filelock import FileLock

LOCK_ATTEMPTS = 10
"""Attempts to lock the folder; each can fail because another conversion ends and removes it."""


@dataclass(frozen=True)
class StagingFolder:
    """The hidden folder beside a destination, in which a package is written.

    Attributes:
        destination: The name under which the package will appear.
    """

    destination: Path

    @property
    def root(self) -> Path:
        """The hidden folder itself."""
        return self.destination.with_name(f".{self.destination.name}.partial")

    @property
    def package(self) -> Path:
        """The package that is being written."""
        return self.root / "package"

    @property
    def journal(self) -> Path:
        """The journal of finished shards."""
        return self.root / "journal.jsonl"

    @property
    def old(self) -> Path:
        """The package that is being replaced."""
        return self.root / "old"

    @property
    def lock(self) -> Path:
        """The lock file of the conversion that works here."""
        return self.root / "lock"


def check_destination(source: Path | None, destination: Path, *, overwrite: bool) -> None:
    """Refuse a destination that exists and may not be replaced.

    Args:
        source: Path of the checkpoint; None if it is remote.
        destination: The folder to create.
        overwrite: Whether an existing package may be replaced.

    Raises:
        StoreError: The destination exists and may not be replaced.
    """
    if not os.path.lexists(destination):
        return
    if not overwrite:
        raise StoreError(
            "exists already", where=destination, hint="name another folder, or use `overwrite`"
        )
    if source is not None and source.resolve().is_relative_to(destination.resolve()):
        raise StoreError("holds the source itself, so it is not replaced", where=destination)
    if not _is_replaceable(destination):
        raise StoreError(
            "is not an RDRR package, so it is not replaced",
            where=destination,
            hint="name another folder, or remove this one yourself",
        )


def was_interrupted(destination: Path) -> bool:
    """Return whether a conversion to this destination was interrupted or is running."""
    return StagingFolder(destination).root.exists()


def _is_replaceable(path: Path) -> bool:
    if not path.is_dir() or path.is_symlink():
        return False
    return (path / MANIFEST_NAME).is_file() or not any(path.iterdir())


@contextmanager
def atomic_folder(
    destination: Path, *, keep: bool = False, resume: bool = False
) -> Iterator[StagingFolder]:
    """Create a staging folder that becomes `destination` if the block ends without an error.

    Args:
        destination: The final path.
        keep: Keep what an interrupted conversion has left, and keep finished shards if the block
            is interrupted, which a note of the exception says. Without it, the staging folder
            starts empty and is removed on every error.
        resume: With `keep`: also keep them if the block cannot write, and take back a package
            that was killed after its last rename.

    Raises:
        StoreError: The folder cannot be created, flushed or renamed, or another conversion is
            writing to it.
    """
    staging = StagingFolder(destination)
    with store_errors(destination):
        make_folder(destination.parent)
    with _locked(staging):
        try:
            with store_errors(destination):
                _recover(staging, keep=keep, resume=resume)
                staging.package.mkdir(exist_ok=True)
            yield staging
            with store_errors(destination):
                _flush(staging.package)
                _replace(staging)
        except BaseException as error:
            shards = count_finished(staging.journal) if keep else 0
            if not shards or not _is_resumable_after(error, resume=resume):
                _clear(staging)
                raise
            error.add_note(
                f"{shards} finished shard{'s are' if shards > 1 else ' is'} kept in "
                f"{staging.root}: the same conversion continues from there, and deleting that "
                "folder frees the space"
            )
            raise
        _clear(staging)


def _is_resumable_after(error: BaseException, *, resume: bool) -> bool:
    """Return whether a retry can succeed, as after Ctrl-C but not after invalid weights.

    After a full disk or a lost worker, shards occupy space that was not asked for, so they are kept
    only under `resume`.
    """
    retried = (StoreError, WorkerError) if resume else ()
    return isinstance(error, retried) or not isinstance(error, RdrrError)


@contextmanager
def _locked(staging: StagingFolder) -> Iterator[None]:
    """Lock the staging folder; the system releases the lock when the process ends in any way."""
    from filelock import FileLock

    lock = FileLock(staging.lock, blocking=False, thread_local=False)
    try:
        _acquire(lock, staging)
        yield
    finally:
        _release(lock, staging)


def _acquire(lock: FileLock, staging: StagingFolder) -> None:
    from filelock import Timeout

    for attempt in range(LOCK_ATTEMPTS):
        try:
            staging.root.mkdir(exist_ok=True)
            lock.acquire()
            return
        except Timeout:
            raise StoreError(
                "another conversion is writing to it",
                where=staging.destination,
                hint="wait until it has ended",
            ) from None
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or attempt + 1 == LOCK_ATTEMPTS:
                with store_errors(staging.root):
                    raise


def _release(lock: FileLock, staging: StagingFolder) -> None:
    """Release the lock, and remove the staging folder if nothing else is in it."""
    if not lock.is_locked:  # interrupted before locking
        with suppress(OSError):  # it fails if another conversion works here
            staging.root.rmdir()
        return
    # The lock file is removed last: a conversion that locks a new one must not see files that
    # this one is still about to remove.
    if [path.name for path in staging.root.iterdir()] == [staging.lock.name]:
        staging.lock.unlink(missing_ok=True)
        with suppress(OSError):
            staging.root.rmdir()
    lock.release()


def clear_package(staging: StagingFolder) -> None:
    """Remove what an interrupted conversion has left, to start again."""
    _clear(staging)
    staging.package.mkdir()


def _recover(staging: StagingFolder, *, keep: bool, resume: bool) -> None:
    """Undo the renames of a killed conversion, and clear its files unless they are kept."""
    _restore_old(staging)
    if not keep:
        _clear(staging)
    elif (
        resume
        and staging.journal.exists()
        and not staging.package.exists()
        and staging.destination.exists()
    ):
        # It was killed after the last rename. The package is complete, and is verified once more.
        staging.destination.rename(staging.package)


def _restore_old(staging: StagingFolder) -> None:
    if not staging.old.exists():
        return
    if os.path.lexists(staging.destination):
        shutil.rmtree(staging.old)
    else:
        staging.old.rename(staging.destination)


def _clear(staging: StagingFolder) -> None:
    """Remove everything but the lock."""
    with suppress(OSError):
        _restore_old(staging)
    shutil.rmtree(staging.package, ignore_errors=True)
    for journal in staging.root.glob(f"{staging.journal.name}*"):
        with suppress(OSError):
            journal.unlink()


def _flush(folder: Path) -> None:
    """Flush the files to disk, so that a power cut after the rename cannot lose their content."""
    for path in folder.iterdir():
        flush_file(path)
    flush_folder(folder)


def _replace(staging: StagingFolder) -> None:
    """Rename the package to its destination, and undo that if it cannot be flushed to disk."""
    is_there = os.path.lexists(staging.destination)
    if is_there:
        staging.destination.rename(staging.old)
    try:
        staging.package.rename(staging.destination)
        flush_folder(staging.destination.parent)
        flush_folder(staging.root)
    except BaseException:
        if staging.destination.exists():
            staging.destination.rename(staging.package)
        if is_there:
            staging.old.rename(staging.destination)
        raise
    shutil.rmtree(staging.old, ignore_errors=True)
