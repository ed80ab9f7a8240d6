"""A package on an object store, which is there when its manifest is.

Objects have no folder that could be renamed, so the manifest is the last object to be written and
the first to be removed. Whatever goes wrong, what was written is removed and there is no manifest.
With `--overwrite` the old package is gone as soon as writing begins.
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

from rdrr_converter.tokenizer import COPIED


def check_url(source: str, destination: str, *, overwrite: bool) -> None:
    """Refuse a destination before any work is done.

    Raises:
        StoreError: It cannot be written to, or holds something that may not be replaced.
    """
    if is_hub(destination):
        raise StoreError(
            "the hub takes finished packages",
            where=destination,
            hint=f"convert into a folder, then rdrr push FOLDER {destination}",
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
    if MANIFEST_NAME not in names and not _are_remains(names):
        raise StoreError(
            "is not an RDRR package, so it is not replaced",
            where=destination,
            hint="name another folder, or remove this one yourself",
        )


def _are_remains(names: Collection[str]) -> bool:
    """Whether everything there is what a conversion that was killed leaves behind."""
    return all(name in (*COPIED, REPORT_NAME) or is_shard_name(name) for name in names)


@contextmanager
def manifest_last(destination: str) -> Iterator[FsspecStore]:
    """A store to write into; the caller writes the manifest as the last file of the block.

    Raises:
        StoreError: The store cannot be written.
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
    """A store that knows what was written through it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.written: list[str] = []

    def open_write(self, name: str) -> BinaryIO:
        """A new file, whose name is noted."""
        self.written.append(name)
        return super().open_write(name)
