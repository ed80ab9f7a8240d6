"""The user's folder for data that rdrr can recreate."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder `rdrr` in $XDG_CACHE_HOME, or in ~/.cache if that is not set.

    The folder may not exist yet.
    """
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "rdrr"
