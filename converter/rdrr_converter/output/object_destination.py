"""A destination on an object store, where a package exists once its manifest does.

Object stores cannot rename a folder, so the manifest is the last object to be written and the first
to be removed. If anything fails, the written objects are removed and no manifest is left. With
`--overwrite`, the old package is lost as soon as writing begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from rdrr_format.errors import StoreError
from rdrr_format.locations import is_hub
from rdrr_format.remote_stores import FsspecStore
from rdrr_format.shards import is_shard_name
from rdrr_manifests.models import MANIFEST_NAME
from rdrr_manifests.models.conversion_report import REPORT_NAME

from rdrr_converter.tokenizer.files import COPIED


def check_url(source: str, destination: str, *, overwrite: bool) -> None:
    """Check a destination before any work is done.

    Raises:
        StoreError: The destination cannot be written, or holds something that may not be replaced.
    """
    if is_hub(destination):
        raise StoreError(
            "a conversion cannot write to the hub, which takes finished packages only",
            where=destination,
            hint=f"convert into a folder, then run: rdrr push FOLDER {destination}",
        )
    if destination.startswith(("http://", "https://")):
        raise StoreError("a web server cannot be written to", where=destination)
    names = FsspecStore(destination).list_or_empty()
    if not names:
        return
    if f"{source.rstrip('/')}/".startswith(f"{destination.rstrip('/')}/"):
        raise StoreError("holds the source itself, so it is not replaced", where=destination)
    if not overwrite:
        raise StoreError(
            "exists already", where=destination, hint="name another folder, or use `overwrite`"
        )
    if MANIFEST_NAME not in names and not _are_leftovers(names):
        raise StoreError(
            "is not an RDRR package, so it is not replaced",
            where=destination,
            hint="name another folder, or remove this one yourself",
        )


def _are_leftovers(names: Collection[str]) -> bool:
    """Return whether all objects are leftovers of a killed conversion."""
    return all(name in (*COPIED, REPORT_NAME) or is_shard_name(name) for name in names)


@contextmanager
def manifest_last(destination: str) -> Iterator[FsspecStore]:
    """Open a store for a package whose manifest the caller writes as the last file of the block.

    Raises:
        StoreError: An object cannot be listed, written or removed.
    """
    store = _Recording(destination)
    before = store.list_or_empty()
    store.delete(MANIFEST_NAME)
    try:
        yield store
    except BaseException:
        for name in (MANIFEST_NAME, *store.written):
            with suppress(StoreError):  # the error that led here is the one to report
                store.delete(name)
        raise
    for name in before:
        if name not in store.written:
            store.delete(name)


class _Recording(FsspecStore):
    """A store that records the names of the files written through it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.written: list[str] = []

    def open_write(self, name: str) -> BinaryIO:
        """Create a file and record its name."""
        self.written.append(name)
        return super().open_write(name)
