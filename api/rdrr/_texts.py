"""Reading a whole file as text."""

from __future__ import annotations

from pathlib import Path

from rdrr_format.errors import UsageError
from rdrr_format.locations import local_path


def read_text(path: str | Path) -> str:
    """The content of a file.

    Raises:
        UsageError: It is no text in UTF-8, or no file system takes the path.
        StoreError: It cannot be read.
    """
    from rdrr_format.stores import store_errors  # it brings NumPy, which --help does without

    try:
        with store_errors(path):
            return local_path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("not a text in UTF-8", where=path, found=error.reason) from error
