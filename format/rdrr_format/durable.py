"""Making files and names survive a power cut.

A file's bytes are flushed by itself, its name only with the folder that holds it: after a rename
that was not flushed the old name can come back.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FOLDERS_ARE_NOT_FLUSHED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""What file systems of networks answer that flush files only."""


def flush_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk.

    Raises:
        OSError: They cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can do that.

    Raises:
        OSError: They cannot be written.
    """
    if os.name == "nt":  # folders cannot be opened there
        return
    try:
        flush_file(path)
    except OSError as error:
        if error.errno not in _FOLDERS_ARE_NOT_FLUSHED:
            raise


def rename_durably(old: Path, new: Path) -> None:
    """Rename within a folder, replacing what has the new name, and flush the folder.

    Raises:
        OSError: It cannot be renamed, or the folder cannot be flushed.
    """
    old.replace(new)
    flush_folder(new.parent)


def make_folder(path: Path) -> None:
    """Make a folder with all above it that are missing, and flush the name of each.

    Raises:
        OSError: One cannot be made or flushed.
    """
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        flush_folder(one.parent)
