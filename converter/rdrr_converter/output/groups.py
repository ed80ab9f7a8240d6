"""The manifest's `groups`, which say where each expert is so that a reader can fetch it alone.

They are written for models with experts only. For other models the field `group` of each tensor
is enough.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from rdrr_format.shard_reader import ShardReader
from rdrr_format.shards import ShardInfo
from rdrr_format.stores import Store
from rdrr_manifests.models import MoeConfig

from rdrr_converter.plan import ConversionPlan, PlannedTensor

VERSION = "1.0.0"
"""Version of a group's content, a field that the public format requires."""

_READ_BYTES = 16 << 20
_NAME = re.compile(r"layer\.(\d+)(?:\.(expert|shared_expert)(?:\.(\d+))?)?")


def describe_experts(moe: MoeConfig, plan: ConversionPlan) -> MoeConfig:
    """Return the block `moeConfig` with the tensor names, shards and size of every expert."""
    experts = {
        f"{match[1]}_{match[3]}": tensors
        for name, tensors in _groups(plan).items()
        if (match := _NAME.fullmatch(name)) and match[2] == "expert"
    }
    return moe.model_copy(
        update={
            "expert_tensors": {key: tuple(t.name for t in some) for key, some in experts.items()},
            "expert_shard_map": {key: _shards(some) for key, some in experts.items()},
            "expert_bytes": max(sum(t.size for t in some) for some in experts.values()),
        }
    )


def describe_groups(
    plan: ConversionPlan, store: Store, shards: Sequence[ShardInfo]
) -> dict[str, object]:
    """Return the manifest's `groups`, with hashes of the bytes that are on disk.

    Raises:
        ShardError: A shard cannot be read.
    """
    reader = ShardReader(store, shards)
    return {name: _describe(name, some, reader) for name, some in _groups(plan).items()}


def _groups(plan: ConversionPlan) -> Mapping[str, Sequence[PlannedTensor]]:
    """Return the tensors of each group, in storage order."""
    groups: dict[str, list[PlannedTensor]] = {}
    for tensor in plan.tensors:
        groups.setdefault(tensor.group, []).append(tensor)
    return groups


def _describe(name: str, tensors: Sequence[PlannedTensor], reader: ShardReader) -> object:
    match = _NAME.fullmatch(name)
    kind = name
    if match:
        kind = {None: "layer", "expert": "expert", "shared_expert": "shared"}[match[2]]
    group: dict[str, object] = {
        "type": kind,
        "version": VERSION,
        "shards": _shards(tensors),
        "tensors": [tensor.name for tensor in tensors],
        "hash": _hash(tensors, reader),
    }
    if match:
        group["layerIndex"] = int(match[1])
        if match[3] is not None:
            group["expertIndex"] = int(match[3])
    return group


def _shards(tensors: Sequence[PlannedTensor]) -> list[int]:
    return sorted({span.shard_index for tensor in tensors for span in tensor.spans})


def _hash(tensors: Sequence[PlannedTensor], reader: ShardReader) -> str:
    """Return the SHA-256 of the tensors' concatenated bytes as hexadecimal digits."""
    digest = hashlib.sha256()
    for tensor in tensors:
        for start in range(0, tensor.size, _READ_BYTES):
            size = min(_READ_BYTES, tensor.size - start)
            digest.update(reader.read_range(tensor.spans, start, size).data)
    return digest.hexdigest()
