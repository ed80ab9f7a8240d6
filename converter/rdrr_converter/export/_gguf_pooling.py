"""Metadata of embedding models in GGUF files: the pooling, and what a GGUF cannot state."""

from __future__ import annotations

from typing import Any

from rdrr_format.errors import ConversionError
from rdrr_manifests.package import Package

from rdrr_converter.sources.gguf_pooling import POOLING_TYPES

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
    if block.projections:
        raise ConversionError(
            "an embedding model with linear layers after the pooling cannot be exported as GGUF",
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
    return {f"{name}.pooling_type": kinds[block.pooling_mode]}, tuple(notes)
