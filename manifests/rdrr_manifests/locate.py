"""Find the store that holds a package, and its manifest's name, from a path or URL."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rdrr_format.errors import ManifestError, RdrrError, StoreError
from rdrr_format.locations import HubLocation, is_hub, is_url, local_path, parse_hub, remote_url
from rdrr_format.opening import open_store
from rdrr_format.stores import Store, read_bounded, store_errors

from rdrr_manifests.models import MANIFEST_NAME
from rdrr_manifests.reading import MANIFEST, not_rdrr

_CHECKPOINT_FILES = ("config.json", "model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class Location:
    """The location of a manifest.

    Attributes:
        store: The store of the folder that contains it.
        name: File name of the manifest in that folder.
        is_bare: Whether the user named the manifest itself rather than its folder.
        where: The location as the user wrote it, for messages.
    """

    store: Store
    name: str
    is_bare: bool
    where: str

    def read_manifest(self) -> bytes:
        """Return the manifest's bytes.

        Raises:
            StoreError: The file does not exist or cannot be read.
            ManifestError: The file is too large to be a manifest, or the folder has none.
        """
        if not self.store.exists(self.name):
            raise self._missing()
        size = self.store.size(self.name)
        if size > MANIFEST.size:
            head = self.store.read(self.name, 0, 4).tobytes()
            kind = "a GGUF file" if head == b"GGUF" else f"a file of {size} bytes"
            raise not_rdrr(self.where, kind, "name the folder or its manifest.json")
        return self.store.read(self.name, 0, size).tobytes()

    def read_file(self, name: str) -> bytes | None:
        """Return a file next to the manifest; None if it is missing, too large or unreadable."""
        try:
            return (
                read_bounded(self.store, name, MANIFEST.size) if self.store.exists(name) else None
            )
        except RdrrError:
            return None

    def _missing(self) -> RdrrError:
        """Return the error for a manifest that does not exist."""
        if self.is_bare:
            return StoreError("no such file", where=self.where)
        is_checkpoint = any(self.store.exists(name) for name in _CHECKPOINT_FILES)
        return ManifestError(
            "not an RDRR package: there is no manifest.json",
            where=self.where,
            found="a checkpoint" if is_checkpoint else None,
            hint=(
                "convert it first: rdrr convert SRC DST"
                if is_checkpoint
                else "a conversion that was interrupted leaves no manifest.json either"
            ),
        )


def locate(location: str | os.PathLike[str], *, follow_links: bool = False) -> Location:
    """Find the manifest that a path or URL names.

    Args:
        location: Path or URL of the package's folder or of the manifest itself.
        follow_links: Read the targets of links in the folder, wherever they are.

    Raises:
        UsageError: An `hf://` location names no repository, a URL has a wrong form, or the path is
            empty or not valid on any file system.
        StoreError: The path or repository does not exist.
    """
    text = os.fspath(location)
    if is_hub(text):
        return _on_the_hub(parse_hub(text))
    if is_url(text):
        folder, _, name = remote_url(text).rpartition("/")
        if name.endswith(".json"):
            return Location(open_store(folder), name, True, text)
        return Location(open_store(text), MANIFEST_NAME, False, text)
    path = local_path(text)
    with store_errors(path):
        is_there = path.exists()
    if not is_there:
        raise StoreError("no such path", where=text)
    if path.is_dir():
        return Location(open_store(path, follow_links=follow_links), MANIFEST_NAME, False, text)
    # A link that the user names directly is followed in any case.
    named = path.resolve() if path.is_symlink() else path
    store = open_store(named.parent, follow_links=follow_links)
    return Location(store, named.name, True, text)


def _on_the_hub(location: HubLocation) -> Location:
    from rdrr_format.hub import HubStore, list_files

    name = location.file or MANIFEST_NAME
    store = HubStore(list_files(location, name))
    return Location(store, name, location.file is not None, str(location))
