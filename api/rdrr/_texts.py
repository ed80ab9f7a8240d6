"""Read a whole file as text."""

from __future__ import annotations

from pathlib import Path

from rdrr_format.errors import UsageError
from rdrr_format.locations import local_path


def read_text(path: str | Path) -> str:
    """Return the text of a file.

    Raises:
        UsageError: The file is not text in UTF-8, or the path is not valid.
        StoreError: The file cannot be read.
    """
    from rdrr_format.stores import store_errors  # imports NumPy, which `rdrr --help` does not need

    try:
        with store_errors(path):
            return local_path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("the file is not text in UTF-8", where=path, found=error.reason) from error
