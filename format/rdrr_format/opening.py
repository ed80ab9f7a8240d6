"""The store behind a location: a folder, a web server, or whatever fsspec knows."""

from __future__ import annotations

import os

from rdrr_format.remote_stores import FsspecStore, HttpStore
from rdrr_format.stores import LocalStore, Store


def open_store(location: str | os.PathLike[str]) -> Store:
    """The store of a path or URL; nothing is read yet.

    Raises:
        StoreError: Nobody here knows the URL's protocol.
    """
    text = os.fspath(location)
    if "://" not in text:
        return LocalStore(text)
    if text.startswith("file://"):
        return LocalStore(text.removeprefix("file://"))
    if text.startswith(("http://", "https://")):
        return HttpStore(text)
    return FsspecStore(text)
