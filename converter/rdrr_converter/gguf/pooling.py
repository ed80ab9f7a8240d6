"""Embedding models in GGUF files, read as the files of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import ConversionError
from rdrr_manifests.models.embedding import Projection
from rdrr_manifests.package import Package

from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.rank_head import RANK, rank_entries, rank_names

_POOLING_TYPES: Mapping[int, str] = MappingProxyType({1: "mean", 2: "cls", 3: "last"})
"""The pooling of each value of `pooling_type`; 0 is none."""

DENSE = ("dense_2.weight", "dense_3.weight")
"""Linear layers after the pooling, in order."""

FOLDERS = ("2_Dense", "3_Dense")
"""Folders that the modules of these layers have in a checkpoint."""

_MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken"}
_TYPE = "sentence_transformers.models"

_WITH_LAYERS = "gemma-embedding"
"""The architecture whose linear layers llama.cpp computes."""

_HINT = "export it `to` safetensors"


def module_files(
    metadata: Mapping[str, Any], name: str, layers: Sequence[tuple[int, ...]], where: object
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files that state the pooling of an embedding model, and notes; none without one.

    llama.cpp divides embeddings by their norm unless it is asked not to, so these are.

    Args:
        metadata: Metadata of the file.
        name: `general.architecture`.
        layers: Shapes of the linear layers after the pooling.
        where: The file, for messages.

    Raises:
        ConversionError: The pooling is none that the format knows.
    """
    kind = metadata.get(f"{name}.pooling_type")
    if kind in (None, 0):
        return {}, ()
    pooling = _POOLING_TYPES.get(kind) if isinstance(kind, int) else None
    if pooling is None:
        raise ConversionError(
            "this pooling cannot be converted",
            where=f"{where}, {name}.pooling_type",
            expected=", ".join(f"{number} ({mode})" for number, mode in _POOLING_TYPES.items()),
            found=f"{kind} (scores of a ranking model)" if kind == RANK else kind,
        )
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    files: dict[str, object] = {"1_Pooling/config.json": {"pooling_mode": _MODES[pooling]}}
    for folder, shape in zip(FOLDERS, layers, strict=False):
        kinds.append(("Dense", folder))
        files[f"{folder}/config.json"] = {
            "out_features": shape[0] if shape else None,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    files["modules.json"] = [{"type": f"{_TYPE}.{module}", "path": path} for module, path in kinds]
    return {path: json.dumps(content).encode() for path, content in files.items()}, (
        "embeddings are normalized, as llama.cpp does: the GGUF does not state it",
    )


def pooling_entries(
    package: Package, row: GgufArchitecture
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the metadata of the pooling, and notes on what is lost; both are empty without one.

    Args:
        package: The package.
        row: The GGUF conventions of the architecture.

    Raises:
        ConversionError: llama.cpp cannot compute what follows the pooling.
    """
    output, name = package.manifest.inference.output, row.name
    block = output.embedding_postprocessor
    if block is None:
        return {}, ()
    layers = block.projections
    if output.classifier is not None:
        return rank_entries(output.classifier, block, name, row.rank)
    if layers and (name != _WITH_LAYERS or len(layers) > len(DENSE) or _has_biases(layers)):
        raise ConversionError(
            "llama.cpp has no such linear layers after the pooling",
            expected=f"at most {len(DENSE)} without biases, in {_WITH_LAYERS}",
            found=f"{len(layers)} in {name}",
            hint=_HINT,
        )
    kinds = {pooling: kind for kind, pooling in _POOLING_TYPES.items()}
    notes = []
    if block.prompts:
        notes.append(f"a GGUF has no place for the prompts {', '.join(sorted(block.prompts))}")
    if block.normalize != "l2":
        notes.append("readers of a GGUF normalize its embeddings, which this model does not")
    if not block.include_prompt:
        notes.append("readers of a GGUF include the tokens of a prompt in the mean")
    entries = {f"{name}.pooling_type": kinds[block.pooling_mode]}
    for weight, layer in zip(DENSE, layers, strict=False):
        stem = f"{name}.{weight.removesuffix('.weight')}_feat"
        entries |= {f"{stem}_in": layer.input_size, f"{stem}_out": layer.output_size}
    return entries, tuple(notes)


def layer_names(package: Package, row: GgufArchitecture) -> dict[str, str]:
    """Return llama.cpp's names of the tensors after the pooling, by their stored names."""
    output = package.manifest.inference.output
    block = output.embedding_postprocessor
    if block is None:
        return {}
    if output.classifier is not None:
        return rank_names(block, row.rank)
    pairs = zip(DENSE, block.projections, strict=False)
    return {layer.weight_tensor: weight for weight, layer in pairs}


def _has_biases(layers: Sequence[Projection]) -> bool:
    return any(layer.bias_tensor is not None for layer in layers)
