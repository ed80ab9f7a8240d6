"""Write files and rename them so that they survive a power cut.

`fsync` on a file flushes its bytes but not its name; the name is flushed with the folder that holds
it. After a rename without that, a power cut can bring the old name back.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FOLDERS_ARE_NOT_FLUSHED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""Errors of network file systems that can flush files but not folders."""


def flush_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk.

    Raises:
        OSError: The bytes cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, on systems that can do that.

    Raises:
        OSError: The names cannot be written.
    """
    if os.name == "nt":  # Windows cannot open folders
        return
    try:
        flush_file(path)
    except OSError as error:
        if error.errno not in _FOLDERS_ARE_NOT_FLUSHED:
            raise


def rename_durably(old: Path, new: Path) -> None:
    """Rename a file within its folder, replacing any file of the new name, and flush the folder.

    Raises:
        OSError: The file cannot be renamed, or the folder cannot be flushed.
    """
    old.replace(new)
    flush_folder(new.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and flush the name of each.

    Raises:
        OSError: One of them cannot be created or flushed.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        flush_folder(folder.parent)
