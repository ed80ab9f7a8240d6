"""What the index of `rdrr web` says of the shards of a package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rdrr_format.stores import LocalStore

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.program.schema import Program
    from rdrr_runtime.program.steps import LoadStep


def shard_facts(package: Package, programs: Sequence[Program]) -> dict[str, Any]:
    """Return the fields of an index about the shards that programs load, and their hashes."""
    return {**_loaded(package, programs), **_hashes(package)}


def _loaded(package: Package, programs: Sequence[Program]) -> dict[str, Any]:
    """Return the bytes and the numbers of the shards that programs load, if they are not all."""
    named = {name for program in programs for step in program.load for name in _tensors(step)}
    manifest = package.manifest
    spans = [span for name in named for span in manifest.tensors[name].byte_spans()]
    numbers = sorted({span.shard_index for span in spans})
    size = sum(manifest.shards[number].size for number in numbers)
    return {"size": size} | ({"loads": numbers} if len(numbers) < len(manifest.shards) else {})


def _tensors(step: LoadStep) -> list[str]:
    """Return the tensors that a load step reads."""
    if step.kind == "vector":
        return [part.tensor for part in step.parts]
    return [step.tensor] if step.kind in ("rows", "repack") else []


def _hashes(package: Package) -> dict[str, list[str]]:
    """Return the SHA-256 of the shards if the manifest has other hashes, and they can be had.

    A browser computes SHA-256 only. The hub states that of its large files.
    """
    from rdrr_format.hub import HubStore
    from rdrr_format.integrity import hash_bytes

    store, names = package.store, [shard.filename for shard in package.manifest.shards]
    if package.manifest.hash_algorithm == "sha256":
        return {}
    if isinstance(store, HubStore):
        hashes = store.hashes
    elif isinstance(store, LocalStore) and all(map(store.exists, names)):
        hashes = {name: hash_bytes("sha256", store.read(name)) for name in names}
    else:
        hashes = {}
    return {"shards": [hashes[name] for name in names]} if set(names) <= hashes.keys() else {}
