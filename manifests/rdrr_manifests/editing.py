"""Changing the hints of a package in place: its manifest is replaced whole, its shards untouched.

The manifest is edited as the JSON it is, so that keys of other writers and generations stay. This
module changes policy only: nothing that says where bytes are or what they mean.
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
        hints: Values by public name; `auto` or nothing takes a hint away.
        follow_links: Edit what a link in the package's folder leads to, wherever that is.

    Returns:
        The hints that have another value than before.

    Raises:
        UsageError: An unknown hint, or a value that it does not have.
        StoreError: There is no such package, or it cannot be written.
        ManifestError: The manifest cannot be edited.
    """
    checked = dict(parse_hint(f"{key}={value or _NO_HINT}") for key, value in hints.items())
    place = locate(location, follow_links=follow_links)
    path = _path(place)
    raw = read_manifest(place.read_manifest(), place.where)
    if raw.faults:
        raise ManifestError(
            "a manifest with a key given twice is not edited",
            where=place.where,
            found=raw.faults[0].field,
        )
    stated = _hints(raw.data, place.where)
    changed = tuple(key for key, value in checked.items() if stated.get(key, _NO_HINT) != value)
    if changed:
        stated.update({key: checked[key] for key in changed})
        text = json.dumps(raw.data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        replace_file(path, text.encode())
    return changed


def _path(place: Location) -> Path:
    if not isinstance(place.store, LocalStore):
        raise StoreError(
            "only a package in a local folder can be edited",
            where=place.where,
            hint="edit it before it is uploaded",
        )
    return place.store.path(place.name)


def _hints(data: dict[str, Any], where: str) -> dict[str, Any]:
    """The object that holds the hints, made where there is none."""
    found: Any = data
    for key in ("optimizations", "kernelHints"):
        if found.get(key) is None:
            found[key] = {}
        found = found[key]
        if not isinstance(found, dict):
            raise ManifestError(
                f"{key} is no object", where=where, expected="an object", found=found
            )
    holder: dict[str, Any] = found
    return holder
