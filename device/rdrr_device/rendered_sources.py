"""Rendered shaders, kept in the user's folder so that later processes start faster.

A process that renders the 40 shaders of a model imports jinja2 and compiles their templates first,
longer than it takes to lower the model's passes. What was rendered once is read instead, as long as
no file of the package with the templates changes. Sizes and times of change tell that, as for
Python's compiled modules: reading 240 files takes as long as rendering 40.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from shutil import rmtree

from rdrr_format.user_folders import cache_folder

STATES = 4
"""States of a package whose sources are kept: those of several installations."""


class RenderedSources:
    """Sources that were rendered from one state of a package's templates.

    Args:
        folder: Where they are kept; None to keep nothing. It need not exist, and no fault of it or
            of a file in it is an error.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def of(self, key: str, render: Callable[[], str]) -> str:
        """Return the source of a key, which is rendered if it is not there as a whole."""
        if self._folder is None:
            return render()
        path = self._folder / _digest(key)
        with suppress(OSError, ValueError):
            digest, _, source = path.read_bytes().decode().partition("\n")
            if digest == _digest(source):
                return source
        source = render()
        with suppress(OSError):
            if not self._folder.is_dir():
                self._folder.mkdir(mode=0o700, parents=True)
                _remove_oldest(self._folder)
            path.write_bytes(f"{_digest(source)}\n{source}".encode())
        return source


def rendered_sources(package: str) -> RenderedSources:
    """Return the sources that were rendered from the templates of a Python package as it is now.

    Nothing is kept for a user without a home, or if the package is not a folder.
    """
    try:
        root = Path(import_module(package).__path__[0])
        states = sorted(_states(root))
        name = f"{package}-{_digest(repr((str(root), states)))[:16]}"
        return RenderedSources(cache_folder() / "shaders" / name if states else None)
    except (OSError, RuntimeError):
        return RenderedSources(None)


def _states(folder: Path | str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of change of all templates and modules below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".wgsl", ".py")):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _states(entry.path)


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest folders of the package that a new folder is for."""
    package = folder.name.rpartition("-")[0]
    others = sorted(folder.parent.glob(f"{package}-*"), key=lambda path: path.stat().st_mtime_ns)
    for other in others[:-STATES]:
        rmtree(other, ignore_errors=True)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
