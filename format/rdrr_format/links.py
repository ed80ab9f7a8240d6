"""The one rule for symbolic links in a package: they do not lead out of it.

A package that was unpacked from an archive may hold links to any file of the machine, and whoever
pushes or shares what was read through one gives that file away.
"""

from __future__ import annotations

import os
from pathlib import Path

from rdrr_format.errors import StoreError


def check_link(path: Path) -> None:
    """Refuse a link that leads out of its folder.

    A folder of the hub's cache, `models--org--name/snapshots/REVISION`, holds nothing but links
    into `models--org--name/blobs`, so that counts as within.

    Raises:
        StoreError: It does.
        OSError: The path cannot be looked at.
    """
    if not path.is_symlink():
        return
    target, folder = Path(os.path.realpath(path)), path.parent.resolve()  # it may be a circle
    homes = [folder]
    if folder.parent.name == "snapshots":
        homes.append(folder.parent.parent / "blobs")
    if not any(target.is_relative_to(home) for home in homes):
        raise StoreError(
            "a link that leads out of the package",
            where=path,
            expected=f"a file in {folder}",
            found=target,
            hint="put the file itself there, or follow links with `follow_links`",
        )
