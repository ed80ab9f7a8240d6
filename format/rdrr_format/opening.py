"""The store behind a location: a folder, a web server, or whatever fsspec knows."""

from __future__ import annotations

import os

from rdrr_format.locations import is_url, local_path
from rdrr_format.remote_stores import FsspecStore, HttpStore
from rdrr_format.stores import LocalStore, Store


def open_store(location: str | os.PathLike[str], *, follow_links: bool = False) -> Store:
    """The store of a path or URL; nothing is read yet.

    Args:
        location: The path or URL of a folder.
        follow_links: Of a folder here, read what links lead to wherever that is.

    Raises:
        UsageError: The path is empty, or no file system takes it.
        StoreError: Nobody here knows the URL's protocol.
    """
    text = os.fspath(location)
    if not is_url(text):
        return LocalStore(local_path(text), follow_links=follow_links)
    if text.startswith(("http://", "https://")):
        return HttpStore(text)
    return FsspecStore(text)
