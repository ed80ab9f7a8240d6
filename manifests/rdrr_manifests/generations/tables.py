"""Translate older spellings in the tables of shards and tensors, which any generation may have."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from rdrr_format.dtypes import parse_dtype
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout, geometry, parse_layout

from rdrr_manifests.generations.normalized import Draft, Generation, block, is_int


def read_version(draft: Draft) -> None:
    """Read a `version` of `"1.0"` or `1.0` as 1."""
    version = draft.data.get("version")
    if isinstance(version, str):
        try:
            version = float(version)
        except ValueError:
            return
        draft.note(f'version "{draft.data["version"]}" was read as a number')
    if isinstance(version, float) and isfinite(version):
        draft.data["version"] = int(version) if version.is_integer() else version


def read_shards(draft: Draft) -> None:
    """Translate the shards: `fileName`, missing offsets and indexes, and hashes of each shard."""
    shards = draft.data.get("shards")
    if not isinstance(shards, list):
        return
    total = 0
    for index, shard in enumerate(shards):
        if not isinstance(shard, dict):
            continue
        if "fileName" in shard:
            shard.setdefault("filename", shard["fileName"])
            del shard["fileName"]
            draft.note("shards: fileName was read as filename")
        if "offset" not in shard:
            shard["offset"] = total
            draft.note("shards: missing offsets were computed")
        if "index" not in shard:
            shard["index"] = index
            draft.note("shards: missing indexes were taken from the order")
        if draft.data.get("hashAlgorithm") == "blake3" and "blake3" in shard:
            shard["hash"] = shard["blake3"]
        elif "hash" not in shard and "blake3" in shard:
            shard["hash"] = shard["blake3"]
            draft.note("shards: blake3 was read as hash")
        size = shard.get("size")
        total += size if isinstance(size, int) else 0
    if not draft.data.get("hashAlgorithm"):
        algorithms = [s.get("hashAlgorithm") for s in shards if isinstance(s, dict)]
        stated = {name for name in algorithms if isinstance(name, str)}
        draft.data["hashAlgorithm"] = stated.pop() if len(stated) == 1 else "sha256"
        draft.note("hashAlgorithm was taken from the shards, or assumed to be sha256")


def entries(draft: Draft) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and entry of each tensor whose entry is an object."""
    for name, entry in block(draft.data, "tensors").items():
        if isinstance(entry, dict):
            yield name, entry


def read_tensors(draft: Draft) -> None:
    """Translate the tensors: `shardIndex` of entries, `shard` of spans, and `originalShape`."""
    for _, entry in entries(draft):
        if "shardIndex" in entry:
            entry.setdefault("shard", entry["shardIndex"])
            del entry["shardIndex"]
            draft.note("tensors: shardIndex was read as shard")
        spans = entry.get("spans")
        if isinstance(spans, list):
            for span in spans:
                if isinstance(span, dict) and "shard" in span:
                    span.setdefault("shardIndex", span.pop("shard"))
                    draft.note("tensors: shard of a span was read as shardIndex")
        _read_original_shape(draft, entry)


def _read_original_shape(draft: Draft, entry: dict[str, Any]) -> None:
    """Set `shape` to the logical shape where a writer stored the transposed one there."""
    original, shape = entry.get("originalShape"), entry.get("shape")
    is_column = str(entry.get("layout", "")).lower() in ("column", "col", "column_wise")
    if not (is_column and isinstance(original, list) and isinstance(shape, list)):
        return
    if len(shape) == 2 and original == shape[::-1] and original != shape:
        entry["shape"] = list(original)
        draft.note("tensors: the shape of column-major tensors was read as the logical [N, K]")


def declare_layouts(draft: Draft) -> None:
    """Give tensors without a layout the one that is stated for the whole package.

    Older writers stated `column_wise` once for the package and no layout for its tensors. A tensor
    is only marked as column-major if its size fits that layout.
    """
    stated = _stated_layout(draft)
    info = block(draft.data, "quantizationInfo")
    spelling = {"column_wise": "col", "row_wise": "row"}.get(str(info.get("layout")))
    if spelling:
        info["layout"] = spelling
        draft.note(f"quantizationInfo.layout was read as {spelling}")
    if stated is not Layout.COLUMN:
        return
    for name, entry in entries(draft):
        if entry.get("layout") is not None or _is_embedding(name, entry):
            continue
        if _has_size_of(entry, Layout.COLUMN):
            entry["layout"] = Layout.COLUMN.value
            draft.note("tensors: layout column was taken from the statement for the whole package")


def _stated_layout(draft: Draft) -> Layout | None:
    """Return the layout that is stated for the whole package in any of the known fields."""
    quantization = block(block(draft.data, "conversion"), "quantization")
    candidates = (
        block(draft.data, "quantizationInfo").get("layout"),
        block(draft.data, "config").get("q4kLayout"),
        quantization.get("layout"),
        draft.data.get("defaultWeightLayout") if draft.generation is Generation.DECEMBER else None,
    )
    for candidate in candidates:
        if isinstance(candidate, str):
            try:
                return parse_layout(candidate)
            except FormatError:
                continue
    return None


def _is_embedding(name: str, entry: dict[str, Any]) -> bool:
    return entry.get("role") == "embedding" or "embed" in name


def _has_size_of(entry: dict[str, Any], layout: Layout) -> bool:
    """Return whether a matrix of blocks has the size that it would have in a layout."""
    shape, dtype = entry.get("shape"), entry.get("dtype")
    if not (isinstance(shape, list) and len(shape) == 2 and all(is_int(n) for n in shape)):
        return False
    if not isinstance(dtype, str):
        return False
    try:
        kind = parse_dtype(dtype)
        return kind.is_block and geometry(kind, shape, layout).size == entry.get("size")
    except FormatError:
        return False
