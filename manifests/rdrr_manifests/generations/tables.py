"""Spellings in the tables of shards and tensors, which every generation may mix."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from rdrr_format.dtypes import parse_dtype
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout, geometry, parse_layout

from rdrr_manifests.generations.normalized import Draft, Generation, block, is_int


def read_version(draft: Draft) -> None:
    """`"1.0"` and `1.0` are 1."""
    version = draft.data.get("version")
    if isinstance(version, str):
        try:
            version = float(version)
        except ValueError:
            return
        draft.note(f'version "{draft.data["version"]}" read as a number')
    if isinstance(version, float) and isfinite(version):
        draft.data["version"] = int(version) if version.is_integer() else version


def read_shards(draft: Draft) -> None:
    """`fileName`, missing offsets and indexes, and the algorithm stated shard by shard."""
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
            draft.note("shards: fileName read as filename")
        if "offset" not in shard:
            shard["offset"] = total
            draft.note("shards: missing offsets computed")
        if "index" not in shard:
            shard["index"] = index
            draft.note("shards: missing indexes counted")
        if draft.data.get("hashAlgorithm") == "blake3" and "blake3" in shard:
            shard["hash"] = shard["blake3"]
        elif "hash" not in shard and "blake3" in shard:
            shard["hash"] = shard["blake3"]
            draft.note("shards: blake3 read as hash")
        size = shard.get("size")
        total += size if isinstance(size, int) else 0
    if not draft.data.get("hashAlgorithm"):
        algorithms = [s.get("hashAlgorithm") for s in shards if isinstance(s, dict)]
        stated = {name for name in algorithms if isinstance(name, str)}
        draft.data["hashAlgorithm"] = stated.pop() if len(stated) == 1 else "sha256"
        draft.note("hashAlgorithm taken from the shards, or sha256")


def entries(draft: Draft) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tensor entries that are objects."""
    for name, entry in block(draft.data, "tensors").items():
        if isinstance(entry, dict):
            yield name, entry


def read_tensors(draft: Draft) -> None:
    """`shardIndex`, spans beside or instead of a shard, spans that say `shard`."""
    for _, entry in entries(draft):
        if "shardIndex" in entry:
            entry.setdefault("shard", entry["shardIndex"])
            del entry["shardIndex"]
            draft.note("tensors: shardIndex read as shard")
        spans = entry.get("spans")
        if isinstance(spans, list):
            for span in spans:
                if isinstance(span, dict) and "shard" in span:
                    span.setdefault("shardIndex", span.pop("shard"))
                    draft.note("tensors: shard of a span read as shardIndex")
        _read_original_shape(draft, entry)


def _read_original_shape(draft: Draft, entry: dict[str, Any]) -> None:
    """Make `shape` the logical one where a writer put the storage order into it."""
    original, shape = entry.get("originalShape"), entry.get("shape")
    is_column = str(entry.get("layout", "")).lower() in ("column", "col", "column_wise")
    if not (is_column and isinstance(original, list) and isinstance(shape, list)):
        return
    if len(shape) == 2 and original == shape[::-1] and original != shape:
        entry["shape"] = list(original)
        draft.note("tensors: shape of column tensors read as the logical [N, K]")


def declare_layouts(draft: Draft) -> None:
    """Put the layout stated for the whole package on the tensors that it concerns.

    Older writers stated `column_wise` once and marked no tensor. The tensor's size decides where
    it contradicts the statement.
    """
    stated = _stated_layout(draft)
    info = block(draft.data, "quantizationInfo")
    spelling = {"column_wise": "col", "row_wise": "row"}.get(str(info.get("layout")))
    if spelling:
        info["layout"] = spelling
        draft.note("quantizationInfo.layout: December's word read as the current one")
    if stated is not Layout.COLUMN:
        return
    for name, entry in entries(draft):
        if entry.get("layout") is not None or _is_lookup(name, entry):
            continue
        if _fits(entry, Layout.COLUMN):
            entry["layout"] = Layout.COLUMN.value
            draft.note("tensors: layout column taken from the package's own statement")


def _stated_layout(draft: Draft) -> Layout | None:
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


def _is_lookup(name: str, entry: dict[str, Any]) -> bool:
    return entry.get("role") == "embedding" or "embed" in name


def _fits(entry: dict[str, Any], layout: Layout) -> bool:
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
