"""What stands in the place of a file that was not fetched: a pointer of Git LFS, or a dead link.

A clone without Git LFS has a few lines of text instead of weights and tokenizers; a cache that was
cleared or copied in part has links that lead nowhere.
"""

from __future__ import annotations

from pathlib import Path

from rdrr_format.regular_files import open_regular

_POINTER = b"version https://git-lfs."


def pointer_hint(content: bytes) -> str | None:
    """What to do about a file with this content; None where it is no pointer."""
    if not content.startswith(_POINTER):
        return None
    return "it is a pointer of Git LFS; `git lfs pull` fetches the file itself"


def pointer_hint_of(path: Path) -> str | None:
    """`pointer_hint` of a file; None also where it cannot be read."""
    try:
        with open_regular(path) as file:
            return pointer_hint(file.read(len(_POINTER)))
    except OSError:
        return None


def broken_links(folder: Path) -> str | None:
    """Names of the links in a folder that lead nowhere, for messages."""
    if not folder.is_dir():
        return None
    names = sorted(one.name for one in folder.iterdir() if one.is_symlink() and not one.exists())
    return f"links that lead nowhere: {', '.join(names[:8])}" if names else None
