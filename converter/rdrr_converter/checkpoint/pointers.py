"""Recognise placeholders of files that were never downloaded: Git LFS pointers and broken links.

A clone without Git LFS has a few lines of text instead of weights and tokenizers. A cache that was
partly cleared or copied has symbolic links to files that do not exist.
"""

from __future__ import annotations

from pathlib import Path

from rdrr_format.regular_files import open_regular

_POINTER = b"version https://git-lfs."


def pointer_hint(content: bytes) -> str | None:
    """Return advice about a file with this content if it is a Git LFS pointer, otherwise None."""
    if not content.startswith(_POINTER):
        return None
    return "it is a Git LFS pointer; `git lfs pull` downloads the file itself"


def pointer_hint_of(path: Path) -> str | None:
    """Return `pointer_hint` of a file's content; None also if the file cannot be read."""
    try:
        with open_regular(path) as file:
            return pointer_hint(file.read(len(_POINTER)))
    except OSError:
        return None


def broken_links(folder: Path) -> str | None:
    """Return the names of broken symbolic links in a folder, for messages; None without any."""
    if not folder.is_dir():
        return None
    names = sorted(
        path.name for path in folder.iterdir() if path.is_symlink() and not path.exists()
    )
    return f"broken links: {', '.join(names[:8])}" if names else None
