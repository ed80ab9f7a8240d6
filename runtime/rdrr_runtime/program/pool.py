"""Pools of shaders: folders in which programs share them, each in a file named by its hash."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rdrr_format.errors import FormatError
from rdrr_format.stores import LocalStore, read_bounded, replace_file, store_errors

MOST_BYTES = 1 << 20
"""Most bytes of a shader; the longest ones have 60 KB."""


def write_shaders(folder: Path, shaders: Mapping[str, str]) -> int:
    """Write the shaders that a pool lacks, and return their number.

    Raises:
        StoreError: The folder or a file cannot be written.
    """
    with store_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lacking = {name: text for name, text in shaders.items() if not _holds(folder, name, text)}
    for name, text in lacking.items():
        replace_file(folder / _file(name), text.encode())
    return len(lacking)


def read_shader(folder: Path, name: str) -> str:
    """Return a shader of a pool; whoever reads a program compares it with its hash.

    Raises:
        FormatError: It is not a text.
        StoreError: The pool lacks it, or it is too large.
    """
    content = read_bounded(LocalStore(folder), _file(name), MOST_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise FormatError("not a shader", where=folder / _file(name)) from None


def _holds(folder: Path, name: str, text: str) -> bool:
    """Return whether a pool has a shader whole: a file of another content is replaced."""
    path = folder / _file(name)
    with store_errors(path):
        return path.is_file() and path.read_bytes() == text.encode()


def _file(name: str) -> str:
    return f"{name}.wgsl"
