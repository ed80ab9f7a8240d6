"""Packages in the cache of the Hugging Face Hub: fetch them, list them, remove them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import RdrrError, StoreError
from rdrr_format.locations import HUB, is_hub, parse_hub

if TYPE_CHECKING:
    from huggingface_hub import HFCacheInfo

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CachedPackage:
    """A package in the cache.

    Attributes:
        name: The repository, `org/name`.
        revision: The commit.
        references: Branches and tags that lead to it.
        path: Its folder.
        size: Bytes of its files.
    """

    name: str
    revision: str
    references: tuple[str, ...]
    path: Path
    size: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "name": self.name,
            "revision": self.revision,
            "references": list(self.references),
            "path": str(self.path),
            "size": self.size,
        }


def pull(location: str) -> CachedPackage:
    """Fetch all files of a package on the hub into the cache.

    Args:
        location: `hf://org/name[@revision]`, or the same without `hf://`.

    Raises:
        UsageError: It is no repository of the hub.
        StoreError: It cannot be fetched.
        ManifestError: It is no package.
    """
    from rdrr_format.hub import HubStore, fetch_files
    from rdrr_manifests.package import open_package

    text = location if is_hub(location) else HUB + location
    place = parse_hub(text)
    store = open_package(text).store
    assert isinstance(store, HubStore)
    fetch_files(store, store.list())
    folder = store.readable(_MANIFEST).parent
    size = sum(store.size(name) for name in store.list())
    return CachedPackage(place.repository, folder.name, (), folder, size)


def cached_packages() -> list[CachedPackage]:
    """Return the packages in the cache, by their names."""
    return sorted(_packages(_cache()), key=lambda package: (package.name, package.revision))


def remove(location: str) -> int:
    """Remove a package from the cache: all its revisions, or the one that is named.

    Returns:
        The bytes that are freed.

    Raises:
        StoreError: It is not in the cache.
    """
    place = parse_hub(location if is_hub(location) else HUB + location)
    cache = _cache()
    revisions = [
        package.revision
        for package in _packages(cache)
        if package.name == place.repository
        and place.revision in (None, package.revision, *package.references)
    ]
    if cache is None or not revisions:
        raise StoreError(
            "there is no such package in the cache", where=location, hint="see `rdrr list`"
        )
    removal = cache.delete_revisions(*revisions)
    removal.execute()
    return removal.expected_freed_size


def _cache() -> HFCacheInfo | None:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        return scan_cache_dir()
    except (CacheNotFound, ValueError):
        return None


def _packages(cache: HFCacheInfo | None) -> Iterator[CachedPackage]:
    for repository in cache.repos if cache is not None else ():
        for revision in repository.revisions:
            if repository.repo_type == "model" and _is_package(revision.snapshot_path):
                yield CachedPackage(
                    repository.repo_id,
                    revision.commit_hash,
                    tuple(sorted(revision.refs)),
                    revision.snapshot_path,
                    revision.size_on_disk,
                )


def _is_package(folder: Path) -> bool:
    from rdrr_manifests.package import open_package

    try:
        open_package(folder, follow_links=True)  # the cache is made of links
    except RdrrError:
        return False
    return True
