"""Folders of the user in which rdrr keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder `rdrr` in $XDG_CACHE_HOME, or in ~/.cache where that is not set.

    It may not be there yet.
    """
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "rdrr"
