"""A folder that appears under its name only when it is complete.

Everything is written into a hidden sibling, flushed to disk and renamed. Whatever goes wrong,
the sibling is removed and what stood under the name before is still there.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rdrr_format.errors import StoreError
from rdrr_format.stores import store_errors
from rdrr_manifests.models import MANIFEST_NAME


def check_destination(source: Path, destination: Path, *, overwrite: bool) -> None:
    """Refuse a destination before any work is done.

    Raises:
        StoreError: It exists and may not be replaced.
    """
    if not os.path.lexists(destination):
        return
    if not overwrite:
        raise StoreError(
            "exists already", where=destination, hint="name another folder, or use --overwrite"
        )
    if source.resolve().is_relative_to(destination.resolve()):
        raise StoreError("holds the source itself, so it is not replaced", where=destination)
    if not _is_replaceable(destination):
        raise StoreError(
            "is not an RDRR package, so it is not replaced",
            where=destination,
            hint="name another folder, or remove this one yourself",
        )


def _is_replaceable(path: Path) -> bool:
    if not path.is_dir() or path.is_symlink():
        return False
    return (path / MANIFEST_NAME).is_file() or not any(path.iterdir())


@contextmanager
def complete_or_nothing(destination: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `destination` if the block ends without an error.

    Raises:
        StoreError: The folder cannot be made, flushed or renamed.
    """
    with store_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial = _sibling(destination, "partial")
        partial.mkdir()
    try:
        yield partial
        with store_errors(destination):
            _flush(partial)
            _replace(partial, destination)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _sibling(destination: Path, word: str) -> Path:
    return destination.with_name(f".{destination.name}.{word}-{secrets.token_hex(4)}")


def _flush(folder: Path) -> None:
    """Make the contents survive a power cut before the name does."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(partial: Path, destination: Path) -> None:
    if not os.path.lexists(destination):
        partial.rename(destination)
        return
    old = _sibling(destination, "old")
    destination.rename(old)
    try:
        partial.rename(destination)
    except BaseException:
        old.rename(destination)
        raise
    shutil.rmtree(old, ignore_errors=True)
