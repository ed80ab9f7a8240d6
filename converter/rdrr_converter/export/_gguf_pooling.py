"""Metadata of embedding models in GGUF files: the pooling, and what a GGUF cannot state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdrr_format.errors import ConversionError
from rdrr_manifests.models.embedding import Projection
from rdrr_manifests.package import Package

from rdrr_converter.sources.gguf_pooling import DENSE, POOLING_TYPES

_WITH_LAYERS = "gemma-embedding"
"""The architecture whose linear layers llama.cpp computes."""

_HINT = "export it `to` safetensors"


def pooling_entries(package: Package, name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the metadata of the pooling, and notes on what is lost; both are empty without one.

    Args:
        package: The package.
        name: `general.architecture`.

    Raises:
        ConversionError: llama.cpp cannot compute what follows the pooling.
    """
    output = package.manifest.inference.output
    block = output.embedding_postprocessor
    if block is None:
        return {}, ()
    if output.classifier is not None:
        raise ConversionError(
            "a model with a classification head cannot be exported as GGUF", hint=_HINT
        )
    layers = block.projections
    if layers and (name != _WITH_LAYERS or len(layers) > len(DENSE) or _has_biases(layers)):
        raise ConversionError(
            "llama.cpp has no such linear layers after the pooling",
            expected=f"at most {len(DENSE)} without biases, in {_WITH_LAYERS}",
            found=f"{len(layers)} in {name}",
            hint=_HINT,
        )
    kinds = {pooling: kind for kind, pooling in POOLING_TYPES.items()}
    notes = []
    if block.prompts:
        notes.append(f"a GGUF has no place for the prompts {', '.join(sorted(block.prompts))}")
    if block.normalize != "l2":
        notes.append("readers of a GGUF normalize its embeddings, which this model does not")
    if not block.include_prompt:
        notes.append("readers of a GGUF include the tokens of a prompt in the mean")
    entries = {f"{name}.pooling_type": kinds[block.pooling_mode]}
    for own, layer in zip(DENSE, layers, strict=False):
        stem = f"{name}.{own.removesuffix('.weight')}_feat"
        entries |= {f"{stem}_in": layer.input_size, f"{stem}_out": layer.output_size}
    return entries, tuple(notes)


def layer_names(package: Package) -> dict[str, str]:
    """Return llama.cpp's names of the linear layers after the pooling, by their stored names."""
    block = package.manifest.inference.output.embedding_postprocessor
    layers = () if block is None else block.projections
    return {layer.weight_tensor: own for own, layer in zip(DENSE, layers, strict=False)}


def _has_biases(layers: Sequence[Projection]) -> bool:
    return any(layer.bias_tensor is not None for layer in layers)
