"""The rules for file names and symbolic links: neither may lead out of its folder.

Manifests and the indexes of checkpoints are untrusted, so every file name in them is checked here
before that file is opened or written: a name is plain if it cannot lead out of its folder on any
system. A folder that was unpacked from an archive can contain links to any file of the machine.
Somebody who then pushes or shares what was read through such a link would leak that file.
"""

from __future__ import annotations

import os
from pathlib import Path

from rdrr_format.errors import FormatError, StoreError

EXPECTED = "a name without folders"
"""How error messages describe a plain name."""

_RESERVED = {"", ".", ".."}
_SEPARATORS = "/\\:"
_MAX_BYTES = 255


def is_plain_name(name: str) -> bool:
    """Return whether a file name cannot lead out of its folder on any system."""
    return (
        name not in _RESERVED
        and not name.startswith("~")
        and not any(char in name for char in _SEPARATORS)
        and name.isprintable()
        and name == name.strip()
        and len(name.encode()) <= _MAX_BYTES  # file systems limit bytes, not characters
    )


def check_name(name: str) -> str:
    """Return a name unchanged if it is plain.

    Raises:
        FormatError: The name is not plain.
    """
    if not is_plain_name(name):
        raise FormatError("not a plain file name", expected=EXPECTED, found=name)
    return name


def check_link(path: Path, folder: Path) -> None:
    """Refuse a path that leads out of a folder, whichever part of it is a symbolic link.

    In the cache of the Hugging Face Hub, a folder `models--org--name/snapshots/REVISION` consists
    of links into `models--org--name/blobs`, so those are allowed.

    Args:
        path: Path of a file in the folder; it need not exist.
        folder: The folder, which may be a link itself.

    Raises:
        StoreError: The path leads out of the folder.
        OSError: The path cannot be accessed.
    """
    is_inside = path.parent == folder and path.name != os.pardir
    if is_inside and not path.is_symlink():  # as most, and paths take long to resolve
        return
    target, home = Path(os.path.realpath(path)), folder.resolve()  # links can form a cycle
    homes = [home]
    if home.parent.name == "snapshots":
        homes.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(allowed) for allowed in homes):
        raise StoreError(
            "a symbolic link leads out of its folder",
            where=path,
            expected=f"a file in {home}",
            found=target,
            hint="put the file itself there, or follow links with `follow_links`",
        )
