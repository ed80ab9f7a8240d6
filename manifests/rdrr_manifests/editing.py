"""Change the kernel hints of a package in place.

The manifest is replaced as a whole and the shards are not touched. It is edited as JSON, so that
keys of other writers and generations are kept. Only hints can be changed: nothing that states where
bytes are or what they mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdrr_format.errors import ManifestError, StoreError
from rdrr_format.stores import LocalStore, replace_file

from rdrr_manifests.locate import Location, locate
from rdrr_manifests.models import parse_hint
from rdrr_manifests.reading import read_manifest

_NO_HINT = "auto"


def set_hints(
    location: str | os.PathLike[str], hints: Mapping[str, str], *, follow_links: bool = False
) -> tuple[str, ...]:
    """Write hints into a package's manifest.

    Args:
        location: The package's folder, or the manifest inside it.
        hints: Values of hints by public name; `auto` or an empty string removes a hint.
        follow_links: Edit the target of a link in the package's folder, wherever it is.

    Returns:
        The names of the hints whose values have changed.

    Raises:
        UsageError: A hint is unknown, or a value is not one of the hint's.
        StoreError: The package does not exist or cannot be written.
        ManifestError: The manifest gives a key twice, or the block of hints is not an object.
    """
    checked = dict(parse_hint(f"{key}={value or _NO_HINT}") for key, value in hints.items())
    manifest_file = locate(location, follow_links=follow_links)
    path = _path(manifest_file)
    raw = read_manifest(manifest_file.read_manifest(), manifest_file.where)
    if raw.faults:
        raise ManifestError(
            "the manifest cannot be edited because a key is given twice",
            where=manifest_file.where,
            found=raw.faults[0].field,
        )
    stated = _hints(raw.data, manifest_file.where)
    changed = tuple(key for key, value in checked.items() if stated.get(key, _NO_HINT) != value)
    if changed:
        stated.update({key: checked[key] for key in changed})
        text = json.dumps(raw.data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        replace_file(path, text.encode())
    return changed


def _path(manifest_file: Location) -> Path:
    if not isinstance(manifest_file.store, LocalStore):
        raise StoreError(
            "only a package in a local folder can be edited",
            where=manifest_file.where,
            hint="edit it before it is uploaded",
        )
    return manifest_file.store.path(manifest_file.name)


def _hints(data: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the object that holds the hints, creating it if it is missing."""
    node: Any = data
    for key in ("optimizations", "kernelHints"):
        if node.get(key) is None:
            node[key] = {}
        node = node[key]
        if not isinstance(node, dict):
            raise ManifestError(
                f"{key} is not an object", where=where, expected="an object", found=node
            )
    holder: dict[str, Any] = node
    return holder
