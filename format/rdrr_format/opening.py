"""Open the store of a path or URL: a folder, a web server, or any file system that fsspec knows."""

from __future__ import annotations

import os

from rdrr_format.locations import is_url, local_path, remote_url
from rdrr_format.stores import LocalStore, Store


def open_store(location: str | os.PathLike[str], *, follow_links: bool = False) -> Store:
    """Return the store of a path or URL without reading anything.

    Args:
        location: The path or URL of a folder.
        follow_links: For a local folder: read the targets of symbolic links wherever they are.

    Raises:
        UsageError: The path is empty, or not valid on any file system, or the URL has a wrong form.
        StoreError: There is no client for the URL's protocol.
    """
    text = os.fspath(location)
    if not is_url(text):
        return LocalStore(local_path(text), follow_links=follow_links)
    from rdrr_format.remote_stores import FsspecStore, HttpStore  # an HTTP client, with TLS

    url = remote_url(text)
    return HttpStore(url) if url.startswith(("http://", "https://")) else FsspecStore(url)
