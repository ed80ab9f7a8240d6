"""Split the single shard of a manifest into several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdrr_format.shards import plan_spans, shard_name


def in_shards(manifest: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the manifest with its bytes cut into shards of at most `size` bytes."""
    [only] = manifest["shards"]
    tensors = {}
    for name, entry in manifest["tensors"].items():
        spans = plan_spans(entry["offset"], entry["size"], size)
        placed = entry | {"shard": spans[0].shard_index, "offset": spans[0].offset}
        if len(spans) > 1:
            placed["spans"] = [
                {"shardIndex": span.shard_index, "offset": span.offset, "size": span.size}
                for span in spans
            ]
        tensors[name] = placed
    shards = [
        only
        | {
            "index": index,
            "filename": shard_name(index),
            "size": min(size, only["size"] - start),
            "offset": start,
        }
        for index, start in enumerate(range(0, only["size"], size))
    ]
    return {**manifest, "tensors": tensors, "shards": shards}
