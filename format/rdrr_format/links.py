"""The rule for symbolic links in a package: they must not lead out of it.

A package that was unpacked from an archive can contain links to any file of the machine. Somebody
who then pushes or shares what was read through such a link would leak that file.
"""

from __future__ import annotations

import os
from pathlib import Path

from rdrr_format.errors import StoreError


def check_link(path: Path) -> None:
    """Refuse a symbolic link that leads out of its folder.

    In the cache of the Hugging Face Hub, a folder `models--org--name/snapshots/REVISION` consists
    of links into `models--org--name/blobs`, so those are allowed.

    Raises:
        StoreError: The link leads out of its folder.
        OSError: The path cannot be accessed.
    """
    if not path.is_symlink():
        return
    target, folder = Path(os.path.realpath(path)), path.parent.resolve()  # links can form a cycle
    homes = [folder]
    if folder.parent.name == "snapshots":
        homes.append(folder.parent.parent / "blobs")
    if not any(target.is_relative_to(home) for home in homes):
        raise StoreError(
            "a symbolic link leads out of the package",
            where=path,
            expected=f"a file in {folder}",
            found=target,
            hint="put the file itself there, or follow links with `follow_links`",
        )
