"""Metadata of embedding models in GGUF files: the pooling, and what a GGUF cannot state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rdrr_format.errors import ConversionError
from rdrr_manifests import rank_question
from rdrr_manifests.models import Classifier, EmbeddingPostprocessor
from rdrr_manifests.models.embedding import Projection
from rdrr_manifests.package import Package

from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.pooling import DENSE, LABELS, POOLING_TYPES, RANK, RANK_HEAD

_WITH_LAYERS = "gemma-embedding"
"""The architecture whose linear layers llama.cpp computes."""

_HINT = "export it `to` safetensors"

_RERANK_TEMPLATE = "tokenizer.chat_template.rerank"
_QUESTION = f"{rank_question.BEFORE}{rank_question.PAIR}{rank_question.AFTER}".replace(
    "{instruction}", rank_question.INSTRUCTION
)
"""The question of the published Qwen3-Reranker models, as llama.cpp's server fills it in."""


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
        return _rank_entries(output.classifier, block, row), ()
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


def _rank_entries(
    classifier: Classifier, block: EmbeddingPostprocessor, row: GgufArchitecture
) -> dict[str, Any]:
    """Return the metadata of a head that llama.cpp has for reranking models.

    Raises:
        ConversionError: llama.cpp has no such head.
    """
    has_form = classifier.activation == "softmax" and block.pooling_mode == "last"
    if row.rank_class is None or not has_form or _has_biases(block.projections):
        raise ConversionError(
            "llama.cpp has no such classification head",
            expected="that of a Qwen 3 whose labels have a softmax, without a bias",
            found=f"{row.name}, {classifier.activation}, {len(classifier.labels)} labels",
            hint=_HINT,
        )
    entries: dict[str, Any] = {
        f"{row.name}.pooling_type": RANK,
        f"{row.name}.{LABELS}": list(classifier.labels),
    }
    if classifier.labels == ("yes", "no"):
        entries |= {"tokenizer.chat_templates": ["rerank"], _RERANK_TEMPLATE: _QUESTION}
    return entries


def layer_names(package: Package) -> dict[str, str]:
    """Return llama.cpp's names of the linear layers after the pooling, by their stored names."""
    block = package.manifest.inference.output.embedding_postprocessor
    layers = () if block is None else block.projections
    if package.manifest.inference.output.classifier is not None:
        return {layer.weight_tensor: RANK_HEAD for layer in layers}
    return {layer.weight_tensor: own for own, layer in zip(DENSE, layers, strict=False)}


def _has_biases(layers: Sequence[Projection]) -> bool:
    return any(layer.bias_tensor is not None for layer in layers)
