"""The head for multi-token prediction in a GGUF, which has it as a layer after the last one.

llama.cpp takes the embedding and the output matrix of the model for the head, as rdrr does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rdrr_format.errors import ManifestError
from rdrr_manifests.graph import mtp
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.gguf.architecture import GgufArchitecture

AS_A_LAYER: Mapping[str, str] = {
    mtp.PROJECTION: "eh_proj",
    mtp.EMBEDDING_NORM: "enorm",
    mtp.HIDDEN_NORM: "hnorm",
    mtp.FINAL_NORM: "shared_head.norm",
}
"""Names of the head's own modules where it counts as a layer."""

_OF_LAYER: Mapping[str, str] = {
    **{theirs: ours for ours, theirs in AS_A_LAYER.items()},
    "shared_head.head": f"{mtp.MTP}lm_head",
    "embed_tokens": f"{mtp.MTP}embed_tokens",
}
"""Names of modules of such a layer in checkpoints of Qwen 3.5."""

_RECURRENT = "attention.recurrent_layers"


def further_name(name: str, layers: int) -> str:
    """Return the name in checkpoints of Qwen 3.5 of a tensor in a layer after the last one.

    Args:
        name: Name with the index of the layer.
        layers: Number of layers of the model; tensors of these keep their names.
    """
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(\w+)", name)
    if match is None or int(match[1]) < layers:
        return name
    module = _OF_LAYER.get(match[2], f"{mtp.MTP}layers.{int(match[1]) - layers}.{match[2]}")
    return f"{module}.{match[3]}"


def further_layer(
    package: Package, tensors: Sequence[LogicalTensor], row: GgufArchitecture
) -> tuple[LogicalTensor, ...]:
    """Return the tensors of a package's draft head, named like those of a layer after the last one.

    Args:
        package: The package.
        tensors: All its tensors.
        row: The GGUF conventions of the architecture.

    Returns:
        None of them if llama.cpp has no such head for the architecture, or the head is incomplete.
    """
    if not row.has_draft_head or not _is_complete(package):
        return ()
    stem = f"model.layers.{package.manifest.architecture.num_layers}."
    head = (tensor for tensor in tensors if tensor.name.startswith(mtp.MTP))
    return tuple(replace(tensor, name=stem + _part(tensor.name)) for tensor in head)


def _is_complete(package: Package) -> bool:
    """Return whether a package has a draft head with all its tensors."""
    try:
        return package.mtp_graph is not None
    except ManifestError:
        return False


def _part(name: str) -> str:
    """Return the name within its layer of a tensor of the head."""
    module, _, ending = name.rpartition(".")
    if module in AS_A_LAYER:
        return f"{AS_A_LAYER[module]}.{ending}"
    return name.removeprefix(mtp.LAYER)


def with_further_layer(
    entries: Mapping[str, Any], row: GgufArchitecture, outgoing: Sequence[OutgoingTensor]
) -> dict[str, Any]:
    """Return the metadata with the draft head as a further layer, if the file has one.

    Args:
        entries: Metadata of the model, whose keys begin with the name of the architecture.
        row: The GGUF conventions of the architecture.
        outgoing: The planned tensors of the GGUF.
    """
    if not any(".nextn." in tensor.name for tensor in outgoing):
        return dict(entries)
    count, recurrent = f"{row.name}.block_count", f"{row.name}.{_RECURRENT}"
    more = {count: entries[count] + 1, f"{row.name}.nextn_predict_layers": 1}
    if recurrent in entries:  # a list states the head too, which has attention
        more[recurrent] = [*entries[recurrent], False]
    return {**entries, **more}
