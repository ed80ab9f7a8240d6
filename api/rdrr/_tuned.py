"""Tuned profiles on disk: one JSON file for each adapter and driver, in the user's cache folder.

They lie in the folder `tuning` of `rdrr_format.user_folders.cache_folder`. A profile is only a
cache: if it is missing, cannot be read or was made for other kernels, the defaults are used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.bounded_json import JsonBounds, parse_json
from rdrr_format.errors import FormatError
from rdrr_format.regular_files import read_regular
from rdrr_format.stores import replace_file, store_errors
from rdrr_format.user_folders import cache_folder

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_device.tuning import Tuning

FORMAT = "rdrr-tuning-1"
BOUNDS = JsonBounds(size=4 << 20, values=1 << 17, depth=8, digits=18)
"""Limits of a file of the cache; a profile with 10,000 shapes fits."""


@dataclass(frozen=True)
class TunedProfile:
    """The tuned profile of an adapter, read from its file.

    Attributes:
        path: Path of the file, whether or not it exists.
        entries: The stored values of each tuning key; its tuning parameters are in `params`.
        note: Why an existing file is not used; empty if it is used or there is none.
    """

    path: Path
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    note: str = ""

    @property
    def remark(self) -> str:
        """The end of a message that says why an existing file is not used, or an empty string."""
        return f"; the tuned profile {self.path} is not used: {self.note}" if self.note else ""

    @property
    def summary(self) -> str:
        """One line about the profile, for the terminal."""
        what = f"not used: {self.note}" if self.note else f"{len(self.entries)} shapes"
        return f"{self.path}, {what}"

    @property
    def tuning(self) -> Tuning:
        """The tuning parameters of the profile."""
        from rdrr_device.tuning import Tuning

        return Tuning({key: entry["params"] for key, entry in self.entries.items()})


def profile_path(info: AdapterInfo) -> Path:
    """Return the path of the profile of an adapter and its driver."""
    return adapter_file("tuning", info)


def adapter_file(folder: str, info: AdapterInfo) -> Path:
    """Return the path of an adapter's file in a folder of the user's cache."""
    return cache_folder() / folder / file_name(info.name, adapter_key(info))


def file_name(adapter: str, key: Mapping[str, str]) -> str:
    """Return the name of the file of an adapter, which differs if anything in the key does."""
    name = re.sub(r"[^a-z0-9]+", "-", adapter.lower()).strip("-") or "adapter"
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return f"{name[:40]}-{digest[:12]}.json"


def adapter_key(info: AdapterInfo) -> dict[str, str]:
    """Return what tells an adapter, its driver and the implementation of WebGPU from others."""
    return {
        "name": info.name,
        "backend": info.backend,
        "driver": info.driver,
        "webgpu": info.implementation,
    }


def read_cached(path: Path) -> Any:
    """Return the value in a JSON file of the user's cache.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
        FormatError: It is not JSON, or exceeds a limit.
    """
    return parse_json(read_regular(path, BOUNDS.size), BOUNDS, constants=False)


def read_profile(info: AdapterInfo) -> TunedProfile:
    """Read the profile of an adapter.

    Without a file it has no entries. If the file cannot be used, for example because its times
    were measured with other kernels, it has none either, and its note gives the reason.
    """
    from rdrr_runtime.phases.phase import FOLDER

    path = profile_path(info)
    try:
        data = read_cached(path)
    except FileNotFoundError:
        return TunedProfile(path)
    except (OSError, FormatError):
        return TunedProfile(path, note="it cannot be read")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return TunedProfile(path, note="it is not a tuned profile")
    if data.get("adapter") != adapter_key(info):
        return TunedProfile(path, note="it was made for another adapter or driver")
    if data.get("kernels") != FOLDER.digest():
        return TunedProfile(path, note="it was made for other kernels")
    entries = data.get("entries")
    if not isinstance(entries, dict) or not all(_is_entry(entry) for entry in entries.values()):
        return TunedProfile(path, note="its entries are damaged")
    return TunedProfile(path, entries)


def _is_entry(entry: Any) -> bool:
    params = entry.get("params") if isinstance(entry, dict) else None
    return isinstance(params, dict) and all(type(value) is int for value in params.values())


def write_profile(info: AdapterInfo, entries: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a complete profile, which replaces the existing one.

    Raises:
        StoreError: The folder cannot be written.
    """
    from rdrr_runtime.phases.phase import FOLDER

    path = profile_path(info)
    data = {
        "format": FORMAT,
        "adapter": adapter_key(info),
        "kernels": FOLDER.digest(),
        "entries": {key: entries[key] for key in sorted(entries)},
    }
    with store_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(data, indent=1) + "\n").encode())
    return path
