"""Writing what follows the language model of an embedding model, or of one that classifies texts.

Embedding models have the files of sentence-transformers, the inverse of `sentence_modules`. A
classification head is a tensor and keys of the configuration, the inverse of `classification`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rdrr_format.errors import ConversionError
from rdrr_format.stores import store_errors
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.models import Classifier, EmbeddingPostprocessor, Manifest
from rdrr_manifests.models.embedding import Projection
from rdrr_manifests.package import Package

from rdrr_converter.architectures import ArchitectureRule
from rdrr_converter.architectures.base import TOKEN, HeadRule
from rdrr_converter.reading.sentence_modules import MODULES, PROMPTS

_TYPE = "sentence_transformers.models"
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "last": "pooling_mode_lasttoken",
    "mean": "pooling_mode_mean_tokens",
}
_LABELLED = ("ForCausalLM", "LMHeadModel")
"""Endings of classes that have a sibling with a classification head."""


def of_language_model(
    manifest: Manifest, tensors: Sequence[LogicalTensor]
) -> tuple[LogicalTensor, ...]:
    """Return the tensors that belong to the language model, without those that follow it."""
    others = _names(manifest.inference.output.embedding_postprocessor)
    return tuple(tensor for tensor in tensors if tensor.stored not in others)


def head_tensors(manifest: Manifest, tensors: Sequence[LogicalTensor]) -> tuple[LogicalTensor, ...]:
    """Return the tensors of a classification head, which are in the files of the model."""
    if manifest.inference.output.classifier is None:
        return ()
    names = _names(manifest.inference.output.embedding_postprocessor)
    return tuple(tensor for tensor in tensors if tensor.stored in names)


def _names(block: EmbeddingPostprocessor | None) -> frozenset[str | None]:
    """Return the names of the tensors of the projections."""
    layers = () if block is None else block.projections
    kinds = ("weight_tensor", "bias_tensor", "norm_tensor", "norm_bias_tensor")
    return frozenset(getattr(layer, kind) for layer in layers for kind in kinds)


def with_head_keys(
    config: Mapping[str, Any], manifest: Manifest, rule: ArchitectureRule
) -> dict[str, Any]:
    """Return a configuration with the class of a model without an output head, and its labels.

    Raises:
        ConversionError: The architecture has no such class.
    """
    output, keys = manifest.inference.output, dict(config)
    block = output.embedding_postprocessor
    if block is None:
        return keys
    if output.classifier is not None:
        return keys | _label_keys(output.classifier, block, rule)
    bodies = [name for name in rule.classes if name.endswith("Model") and name not in _heads(rule)]
    return keys | ({"architectures": bodies[:1]} if bodies else {})


def _heads(rule: ArchitectureRule) -> tuple[str, ...]:
    return tuple(name for name in rule.classes if name.endswith(_LABELLED))


def _label_keys(
    classifier: Classifier, block: EmbeddingPostprocessor, rule: ArchitectureRule
) -> dict[str, Any]:
    """Return the class with the head of a package, and its labels.

    Raises:
        ConversionError: No class of the architecture has this head.
    """
    stored = [layer.weight_tensor for layer in block.projections]
    head = next((head for head in rule.heads if _is_of(head, stored, block.pooling_mode)), None)
    stems = [
        name.removesuffix(part)
        for name in (*_heads(rule), *rule.classes)
        for part in (*_LABELLED, "Model")
        if name.endswith(part)
    ]
    if head is None or not stems:
        raise ConversionError(
            f"{rule.name} has no class with this classification head",
            expected=" or ".join(
                ", ".join(f"{layer.module}.weight" for layer in head.layers)
                for head in rule.heads
                if head.labels
            ),
            found=f"{', '.join(stored)}, pooling {block.pooling_mode}",
        )
    problems = {
        "identity": "regression",
        "sigmoid": "multi_label_classification",
        "softmax": "single_label_classification",
    }
    return {
        "architectures": [f"{stems[0]}{head.ending}"],
        "id2label": {str(index): name for index, name in enumerate(classifier.labels)},
        "label2id": {name: index for index, name in enumerate(classifier.labels)},
        "num_labels": len(classifier.labels),
        "problem_type": problems[classifier.activation],
    }


def _is_of(head: HeadRule, stored: Sequence[str], pooling: str) -> bool:
    """Return whether a head has these weights and reads these tokens."""
    reads = callable(head.pooling) or head.pooling == pooling
    names = [f"{layer.module}.weight" for layer in head.layers]
    is_of_tokens = head.ending == TOKEN
    return head.labels and reads and names == stored and is_of_tokens is (pooling == "none")


def write_modules(package: Package, folder: Path) -> None:
    """Write the files of the modules of an embedding model; nothing for other models.

    Raises:
        StoreError: The folder cannot be written.
        ConversionError: The pooling or a layer has no module.
    """
    output = package.manifest.inference.output
    block = output.embedding_postprocessor
    if block is None or output.classifier is not None:
        return
    flag = _FLAGS.get(block.pooling_mode)
    if flag is None or any(projection.activation != "identity" for projection in block.projections):
        raise ConversionError(
            "this embedding model cannot be exported: sentence-transformers has no such module",
            where=f"{package.where}, inference.output.embeddingPostprocessor",
        )
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    pooling = {name: name == flag for name in _FLAGS.values()}
    size = package.graph.output_size
    _write(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": size, **pooling, "include_prompt": block.include_prompt},
    )
    for index, layer in enumerate(block.projections, len(kinds)):
        kinds.append(("Dense", f"{index}_Dense"))
        _write_layer(package, layer, folder / f"{index}_Dense")
    if block.normalize == "l2":
        kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    _write(
        folder / MODULES,
        [
            {"idx": index, "name": str(index), "path": path, "type": f"{_TYPE}.{kind}"}
            for index, (kind, path) in enumerate(kinds)
        ],
    )
    _write(
        folder / PROMPTS,
        {"prompts": dict(block.prompts), "default_prompt_name": block.default_prompt_name},
    )


def _write_layer(package: Package, layer: Projection, folder: Path) -> None:
    """Write a linear layer in float32, with its configuration."""
    from safetensors.numpy import save_file

    names = {"linear.weight": layer.weight_tensor, "linear.bias": layer.bias_tensor}
    tensors = {
        key: np.ascontiguousarray(package.dequantize(name), np.float32)
        for key, name in names.items()
        if name is not None
    }
    settings = {
        "in_features": layer.input_size,
        "out_features": layer.output_size,
        "bias": layer.bias_tensor is not None,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    _write(folder / "config.json", settings)
    with store_errors(folder):
        save_file(tensors, folder / "model.safetensors")


def _write(path: Path, content: object) -> None:
    with store_errors(path):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
