"""From what a user typed to the store that holds the package and the name of its manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rdrr_format.errors import ManifestError, RdrrError, StoreError
from rdrr_format.locations import HubLocation, is_hub, is_url, local_path, parse_hub
from rdrr_format.opening import open_store
from rdrr_format.stores import Store, read_bounded, store_errors

from rdrr_manifests.models import MANIFEST_NAME
from rdrr_manifests.reading import MANIFEST, not_rdrr

_CHECKPOINT_FILES = ("config.json", "model.safetensors", "model.safetensors.index.json")


@dataclass(frozen=True)
class Location:
    """Where a manifest is.

    Attributes:
        store: The folder it is in.
        name: The manifest's file name there.
        is_bare: The manifest itself was named, not its folder.
        where: What messages call it.
    """

    store: Store
    name: str
    is_bare: bool
    where: str

    def read_manifest(self) -> bytes:
        """The manifest's bytes.

        Raises:
            StoreError: They cannot be read.
            ManifestError: The file is too big to be a manifest, or the folder has none.
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
        """A file beside the manifest; None where there is none of a plain name and its size."""
        try:
            return (
                read_bounded(self.store, name, MANIFEST.size) if self.store.exists(name) else None
            )
        except RdrrError:
            return None

    def _missing(self) -> RdrrError:
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
                else "an interrupted conversion leaves none either"
            ),
        )


def locate(location: str | os.PathLike[str], *, follow_links: bool = False) -> Location:
    """Find the manifest that a path or URL names; a folder, or the manifest itself.

    Args:
        location: The path or URL.
        follow_links: Read what links in the folder lead to, wherever that is.

    Raises:
        UsageError: It begins with `hf://` but names no repository, or it is a path that is empty or
            that no file system takes.
        StoreError: There is no such path or repository.
    """
    text = os.fspath(location)
    if is_hub(text):
        return _on_the_hub(parse_hub(text))
    if is_url(text):
        folder, _, name = text.rstrip("/").rpartition("/")
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
    # Whoever names a link means what it leads to.
    named = path.resolve() if path.is_symlink() else path
    store = open_store(named.parent, follow_links=follow_links)
    return Location(store, named.name, True, text)


def _on_the_hub(location: HubLocation) -> Location:
    from rdrr_format.hub import HubStore, list_files

    name = location.file or MANIFEST_NAME
    store = HubStore(list_files(location, name))
    return Location(store, name, location.file is not None, str(location))
