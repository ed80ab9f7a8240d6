"""Recognise the generation of a manifest and translate it step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdrr_manifests.generations import december, january
from rdrr_manifests.generations.blocks import default_blocks, read_hints
from rdrr_manifests.generations.normalized import Draft, Generation, Normalized, block
from rdrr_manifests.generations.tables import (
    declare_layouts,
    read_shards,
    read_tensors,
    read_version,
)

_CURRENT_SCHEMA = "doppler.execution/v1"
_JANUARY_KEYS = ("defaultKernelPath", "presetId", "sessionDefaults")


def detect(raw: Mapping[str, Any]) -> Generation:
    """Return the generation of a manifest, recognised by its fields.

    A manifest of December 2025 has no `inference` and at least one field in the form of that month.
    A manifest of January 2026 (or of the weeks after, with version 0 of the execution schema) has
    `inference` without the `session` and `schema` that the current generation always writes.
    """
    inference = raw.get("inference")
    if not isinstance(inference, dict):
        shards = raw.get("shards")
        traits = (
            isinstance(raw.get("version"), str),
            isinstance(raw.get("config"), dict),
            isinstance(raw.get("architecture"), str),
            isinstance(shards, list)
            and any(isinstance(shard, dict) and "fileName" in shard for shard in shards),
        )
        return Generation.DECEMBER if any(traits) else Generation.CURRENT
    if "session" in inference:
        return Generation.CURRENT
    is_early = any(key in inference for key in _JANUARY_KEYS)
    is_current = "schema" in inference and inference["schema"] in (None, _CURRENT_SCHEMA)
    return Generation.CURRENT if is_current and not is_early else Generation.JANUARY


def normalize(
    raw: Mapping[str, Any], external_tensors: Mapping[str, Any] | None = None
) -> Normalized:
    """Translate a manifest of any generation into the current one.

    Args:
        raw: The manifest as it was written; it is not changed.
        external_tensors: Content of its `tensorsFile`; None if it has none.
    """
    draft = Draft.of(raw, detect(raw))
    if external_tensors is not None and not block(draft.data, "tensors"):
        inner = external_tensors.get("tensors")
        draft.data["tensors"] = dict(inner if isinstance(inner, dict) else external_tensors)
        draft.note(f"tensors were read from {raw.get('tensorsFile')}")
    read_version(draft)
    read_shards(draft)
    read_tensors(draft)
    if draft.generation is Generation.DECEMBER:
        december.translate(draft)
    elif draft.generation is Generation.JANUARY:
        january.translate(draft)
    default_blocks(draft)
    read_hints(draft)
    declare_layouts(draft)
    return draft.done()
