"""Validate a package at one of three levels: the manifest, the files, or every byte.

Every level reports all faults and does not stop at the first one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rdrr_format.errors import ManifestError, StoreError, UsageError
from rdrr_format.hub import fetch_files
from rdrr_format.misuse import explained
from rdrr_format.stores import LocalStore

from rdrr_manifests.faults import Fault, Level, ValidationReport
from rdrr_manifests.graph import Graph
from rdrr_manifests.locate import Location, locate
from rdrr_manifests.profiles import DOPPLER, PROFILE_NAMES, ProfileName
from rdrr_manifests.reading import read_manifest, read_object
from rdrr_manifests.rules import Examination, examine


@dataclass(frozen=True)
class OpenedManifest:
    """A manifest that was read, with the findings of the structural rules."""

    location: Location
    examination: Examination
    faults: tuple[Fault, ...]


def open_manifest(
    location: str | os.PathLike[str], *, follow_links: bool = False
) -> OpenedManifest:
    """Read a manifest of any generation and run the structural rules.

    Args:
        location: Path or URL of a package's folder or of a manifest.
        follow_links: Read the targets of links in the folder, wherever they are.

    Raises:
        StoreError: The path or URL cannot be read.
        ManifestError: The file is not an RDRR manifest.
    """
    manifest_file = locate(location, follow_links=follow_links)
    raw = read_manifest(manifest_file.read_manifest(), manifest_file.where)
    external, faults = _external_tensors(manifest_file, raw.data)
    examination = examine(
        raw.data,
        external_tensors=external,
        has_tensors="tensorsFile" not in raw.data or external is not None or _inline(raw.data),
    )
    return OpenedManifest(manifest_file, examination, (*raw.faults, *faults, *examination.faults))


@explained
def validate(
    location: str | os.PathLike[str],
    *,
    deep: bool = False,
    strict: bool = False,
    follow_links: bool = False,
    profile: ProfileName = "rdrr",
) -> ValidationReport:
    """Validate a package or a bare manifest.

    Args:
        location: Path or URL of a package's folder, or of a manifest. If it is a manifest, only its
            structure is checked.
        deep: Also hash every shard and decode every tensor.
        strict: Warnings make the package invalid too.
        follow_links: Read the targets of links in the folder, wherever they are.
        profile: The runtime that must be able to run the package; `doppler` adds the rules of the
            public runtime.

    Raises:
        UsageError: The path is empty or not valid on any file system, or there is no such profile.
        StoreError: The path or URL cannot be read at all.
    """
    where = os.fspath(location)
    if profile not in PROFILE_NAMES:
        known = ", ".join(PROFILE_NAMES)
        raise UsageError("`profile` has no such value", expected=known, found=profile)
    try:
        opened = open_manifest(location, follow_links=follow_links)
    except ManifestError as error:
        return ValidationReport(
            where, "structure", error.faults or (_as_fault(error),), strict=strict
        )
    subject = opened.examination.subject
    level: Level = "structure"
    faults = list(opened.faults)
    if not opened.location.is_bare:
        level = "deep" if deep else "files"
        if subject is not None:
            faults += _file_faults(opened, deep)
    if subject is not None and profile == DOPPLER:
        from rdrr_manifests.doppler.check import profile_faults

        faults += profile_faults(subject.manifest)
    normalized = opened.examination.normalized
    shards, tensors = normalized.data.get("shards"), normalized.data.get("tensors")
    model_id = normalized.data.get("modelId")
    return ValidationReport(
        where=where,
        level=level,
        faults=tuple(faults),
        model_id=model_id if isinstance(model_id, str) else None,
        generation=normalized.generation.value,
        notes=normalized.notes,
        runnable=isinstance(opened.examination.graph, Graph),
        facts={
            "shards": len(shards) if isinstance(shards, list) else 0,
            "tensors": len(tensors) if isinstance(tensors, dict) else 0,
            "bytes": subject.manifest.total_size if subject else 0,
        },
        strict=strict,
    )


def _file_faults(opened: OpenedManifest, deep: bool) -> list[Fault]:
    """Run the rules on files, and with `deep` those that read every byte."""
    from rdrr_manifests.rules.files import DEEP, FILES, FileRule

    subject = opened.examination.subject
    assert subject is not None
    manifest, store = subject.manifest, opened.location.store
    again: tuple[FileRule, ...] = ()
    if isinstance(store, LocalStore):
        # Read instead of memory-mapped: a file that shrinks under a map kills the process, and
        # these files are not trusted yet.
        store = LocalStore(store.root, maps=False, follow_links=store.follow_links)
        # Check the sizes again at the end, since files can change while everything is read.
        again = FILES
    if deep:
        fetch_files(store, [shard.filename for shard in manifest.shards])
    faults: list[Fault] = []
    for rule in (*FILES, *((*DEEP, *again) if deep else ())):
        try:
            faults.extend(rule.faults(manifest, store))
        except StoreError as error:
            faults.append(Fault(rule.id, "error", error.where or "", error.message))
    return list(dict.fromkeys(faults))


def _inline(raw: Mapping[str, Any]) -> bool:
    return isinstance(raw.get("tensors"), dict) and bool(raw["tensors"])


def _external_tensors(
    manifest_file: Location, raw: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, tuple[Fault, ...]]:
    """Return the tensor table of `tensorsFile`, if the manifest names one and has no table itself.

    The second value holds the fault of a file that is missing or is not a JSON object.
    """
    name = raw.get("tensorsFile")
    if not isinstance(name, str) or _inline(raw):
        return None, ()
    content = manifest_file.read_file(name)
    if content is None:
        # A bare manifest may have been copied without the file; the rule tensor-list warns then.
        missing = Fault("tensors-file", "error", "tensorsFile", "no such file", found=name)
        return None, () if manifest_file.is_bare else (missing,)
    try:
        return read_object(content, name)
    except ManifestError as error:
        fault = Fault(
            "tensors-file",
            "error",
            "tensorsFile",
            "the file is not a JSON object",
            found=error.found,
        )
        return None, (fault,)


def _as_fault(error: ManifestError) -> Fault:
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    return Fault("not-rdrr", "error", "", message, error.expected, error.found)
