"""A folder that appears under its name only when it is complete.

Everything is written into a hidden sibling, flushed to disk and renamed. Whatever goes wrong,
the sibling is removed and what stood under the name before is still there. A process that is
killed leaves the sibling behind; the next conversion to the same name takes it up or removes it.

    .NAME.partial/
      lock            held while a conversion works here
      package/        what will be NAME
      journal.jsonl   what of it is finished (see `journal`)
      old/            what NAME was, between the two renames that replace it
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

if TYPE_CHECKING:
    from filelock import FileLock

LOCK_ATTEMPTS = 10
"""Times that another conversion may end, and take the folder away, just before it is locked."""


@dataclass(frozen=True)
class Workplace:
    """The hidden folder beside a destination.

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
        """The folder to fill."""
        return self.root / "package"

    @property
    def journal(self) -> Path:
        """What is finished in it."""
        return self.root / "journal.jsonl"

    @property
    def old(self) -> Path:
        """What is being replaced."""
        return self.root / "old"

    @property
    def lock(self) -> Path:
        """Held by the conversion that works here."""
        return self.root / "lock"


def check_destination(source: Path | None, destination: Path, *, overwrite: bool) -> None:
    """Refuse a destination that is there and may not be replaced.

    Args:
        source: The checkpoint, where it is a path.
        destination: The folder to make.
        overwrite: Whether a package that is there may be replaced.

    Raises:
        StoreError: It exists and may not be replaced.
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
    """Whether a conversion to this name was cut short, or is at work."""
    return Workplace(destination).root.exists()


def _is_replaceable(path: Path) -> bool:
    if not path.is_dir() or path.is_symlink():
        return False
    return (path / MANIFEST_NAME).is_file() or not any(path.iterdir())


@contextmanager
def complete_or_nothing(destination: Path, *, resume: bool = False) -> Iterator[Workplace]:
    """A folder to fill, which becomes `destination` if the block ends without an error.

    Args:
        destination: The name to give it.
        resume: Keep what a killed conversion left, and leave it there for another try where this
            one is interrupted or cannot write. Otherwise the folder starts empty and is removed.

    Raises:
        StoreError: The folder cannot be made, flushed or renamed, or another conversion is
            writing it.
    """
    work = Workplace(destination)
    with store_errors(destination):
        make_folder(destination.parent)
    with _locked(work):
        try:
            with store_errors(destination):
                _tidy(work, resume=resume)
                work.package.mkdir(exist_ok=True)
            yield work
            with store_errors(destination):
                _flush(work.package)
                _replace(work)
        except BaseException as error:
            if not (resume and work.journal.exists() and _can_go_on_after(error)):
                _clear(work)
            raise
        _clear(work)


def _can_go_on_after(error: BaseException) -> bool:
    """Whether trying again makes sense: after a full disk it does, after bad weights not."""
    return isinstance(error, (StoreError, WorkerError)) or not isinstance(error, RdrrError)


@contextmanager
def _locked(work: Workplace) -> Iterator[None]:
    """Hold the workplace. The system lets go of it when the process ends, however it does."""
    from filelock import FileLock

    lock = FileLock(work.lock, blocking=False, thread_local=False)
    try:
        _acquire(lock, work)
        yield
    finally:
        _leave(lock, work)


def _acquire(lock: FileLock, work: Workplace) -> None:
    from filelock import Timeout

    for attempt in range(LOCK_ATTEMPTS):
        try:
            work.root.mkdir(exist_ok=True)
            lock.acquire()
            return
        except Timeout:
            raise StoreError(
                "another conversion is writing it", where=work.destination, hint="let it end first"
            ) from None
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or attempt + 1 == LOCK_ATTEMPTS:
                with store_errors(work.root):
                    raise


def _leave(lock: FileLock, work: Workplace) -> None:
    """Take the folder away where nothing is left in it."""
    if not lock.is_locked:  # interrupted as it began; if anything is in it, it is another's
        with suppress(OSError):
            work.root.rmdir()
        return
    # The lock goes last: whoever takes a new one must find nothing that is still removed.
    if [path.name for path in work.root.iterdir()] == [work.lock.name]:
        work.lock.unlink(missing_ok=True)
        with suppress(OSError):
            work.root.rmdir()
    lock.release()


def _tidy(work: Workplace, *, resume: bool) -> None:
    """Bring what a killed conversion left into the state before its renames."""
    _put_old_back(work)
    if not resume:
        _clear(work)
    elif work.journal.exists() and not work.package.exists() and work.destination.exists():
        # It was killed after the last rename: everything is there and is checked once more.
        work.destination.rename(work.package)


def _put_old_back(work: Workplace) -> None:
    if not work.old.exists():
        return
    if os.path.lexists(work.destination):
        shutil.rmtree(work.old)
    else:
        work.old.rename(work.destination)


def _clear(work: Workplace) -> None:
    """Remove everything but the lock."""
    with suppress(OSError):
        _put_old_back(work)
    shutil.rmtree(work.package, ignore_errors=True)
    for journal in work.root.glob(f"{work.journal.name}*"):
        with suppress(OSError):
            journal.unlink()


def _flush(folder: Path) -> None:
    """Make the contents survive a power cut before the name does."""
    for path in folder.iterdir():
        flush_file(path)
    flush_folder(folder)


def _replace(work: Workplace) -> None:
    """Give the package its name; where that is not on the disk afterwards, take it away again."""
    is_there = os.path.lexists(work.destination)
    if is_there:
        work.destination.rename(work.old)
    try:
        work.package.rename(work.destination)
        flush_folder(work.destination.parent)
        flush_folder(work.root)
    except BaseException:
        if work.destination.exists():
            work.destination.rename(work.package)
        if is_there:
            work.old.rename(work.destination)
        raise
    shutil.rmtree(work.old, ignore_errors=True)
