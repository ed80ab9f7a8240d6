"""Reading what a checkpoint has in place of an output head: layers for labels or masked tokens.

A class `ForSequenceClassification` or `ForTokenClassification` has a row of its last layer for each
label, a class `ForMaskedLM` one for each token. Which layers there are, and which tokens they read,
the architecture states (`HeadRule`). The package states them as an embedding with projections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.models import Classifier, EmbeddingPostprocessor
from rdrr_manifests.models.classifier import ClassifierActivation
from rdrr_manifests.models.embedding import Projection

from rdrr_converter.architectures import ArchitectureRule, Config, read_block, stated_names
from rdrr_converter.architectures.base import HeadLayer, HeadRule
from rdrr_converter.architectures.tensors import EMBEDDING
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.reading.matching import ModelTensor
from rdrr_converter.reading.sentence_modules import MODULES

WEIGHT = "score.weight"

_OF_PROBLEMS: Mapping[str, ClassifierActivation] = {
    "multi_label_classification": "sigmoid",
    "regression": "identity",
    "single_label_classification": "softmax",
}
"""What follows the logits for each `problem_type`."""

_ACTIVATIONS: Mapping[str, ClassifierActivation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
"""What follows the logits for each class of torch that a reranking model names."""


@dataclass(frozen=True)
class ClassificationHead:
    """What a model has in place of an output head.

    Attributes:
        block: The pooling and the projections, as the manifest states them.
        classifier: The labels and the activation; None if the last layer has a row for each token.
        tensors: Tensors of the projections.
    """

    block: EmbeddingPostprocessor
    classifier: Classifier | None
    tensors: tuple[ModelTensor, ...]


def without_head(source: Source, rule: ArchitectureRule) -> Source:
    """Return a checkpoint without the tensors of such a head."""
    head = _head_of(source, rule)
    if head is None:
        return source
    names = {name for layer in head.layers for name in _names(layer)}
    remaining = {name: tensor for name, tensor in source.tensors.items() if name not in names}
    return replace(source, tensors=remaining)


def read_head(
    source: Source, rule: ArchitectureRule, config: Config, hidden_size: int
) -> ClassificationHead | None:
    """Return what a checkpoint has in place of an output head; None for other checkpoints.

    Args:
        source: The checkpoint.
        rule: The architecture.
        config: The configuration of the text model.
        hidden_size: Width of the hidden states that a head would read.

    Raises:
        SourceError: The head is missing or has the wrong shape, or the labels do not fit it.
        ConversionError: The configuration asks for an activation that the format lacks.
    """
    head = _head_of(source, rule)
    if head is None:
        return None
    layers: list[Projection] = []
    tensors: list[ModelTensor] = []
    width = hidden_size
    for index, layer in enumerate(head.layers):
        # Only the last layer has another number of rows, one for each label.
        rows = None if index == len(head.layers) - 1 else width
        projection, parts = _read_layer(source, config, layer, width, rows)
        layers.append(projection)
        tensors += parts
        width = projection.output_size
    pooling = str(read_block({"pooling": head.pooling}, config)["pooling"])
    block = EmbeddingPostprocessor(pooling_mode=pooling, projections=tuple(layers))
    classifier = None
    if head.labels:
        activation = _activation(config, width) if pooling != "none" else "softmax"
        classifier = Classifier(labels=_labels(config, width), activation=activation)
    return ClassificationHead(block, classifier, tuple(tensors))


def _head_of(source: Source, rule: ArchitectureRule) -> HeadRule | None:
    """Return what the class of a checkpoint has in place of an output head, if it has such a head.

    A checkpoint of sentence-transformers may keep the class that it was trained as, whose head for
    masked tokens has no part in its embeddings.
    """
    if source.head is not None:
        return source.head
    names = stated_names(source.config)
    for head in rule.heads:
        if any(name.endswith(head.ending) for name in names):
            is_embedding = not head.labels and source.content(MODULES) is not None
            return None if is_embedding else head
    return None


def _names(layer: HeadLayer) -> tuple[str, ...]:
    """Return the names that the tensors of a layer may have in a checkpoint."""
    modules = (layer.module, layer.norm) if layer.norm else (layer.module,)
    stored = (f"{module}.{kind}" for module in modules for kind in ("weight", "bias"))
    return (*stored, layer.bias) if layer.bias else tuple(stored)


def _read_layer(
    source: Source, config: Config, layer: HeadLayer, width: int, rows: int | None
) -> tuple[Projection, list[ModelTensor]]:
    """Return a layer with its tensors; `rows` is None if the weight decides about its rows."""
    weight = source.tensors.get(f"{layer.module}.weight")
    bias = source.tensors.get(layer.bias) or source.tensors.get(f"{layer.module}.bias")
    if weight is None and not layer.is_tied:
        raise SourceError(
            "the classification head is missing",
            where=source.path,
            expected=f"{layer.module}.weight",
            found=f"{len(source.tensors)} tensors",
        )
    count = rows or (weight.shape[0] if weight and weight.shape else config.integer("vocab_size"))
    norm = {kind: source.tensors.get(f"{layer.norm}.{kind}") for kind in ("weight", "bias")}
    parts = [(weight, "other", (count, width)), (bias, "bias", (count,))]
    parts += [(norm["weight"], "norm", (count,)), (norm["bias"], "bias", (count,))]
    for tensor, _, shape in parts:
        if tensor is not None and (tensor.shape != shape or not count):
            raise SourceError(
                "a tensor has the wrong shape",
                where=f"{source.path}, {tensor.name}",
                expected=shape,
                found=tensor.shape,
                hint="the configuration and the weights do not belong together",
            )
    if layer.norm and norm["weight"] is None:
        raise SourceError(
            "the classification head is missing",
            where=source.path,
            expected=f"{layer.norm}.weight",
        )
    eps = config.number("rms_norm_eps") if layer.norm else None
    projection = Projection(
        input_size=width,
        output_size=count,
        weight_tensor=EMBEDDING.name if weight is None else weight.name,
        bias_tensor=_name(bias),
        activation=str(read_block({"activation": layer.activation}, config)["activation"]),
        norm_tensor=_name(norm["weight"]),
        norm_bias_tensor=_name(norm["bias"]),
        norm_eps=eps,
    )
    return projection, [_tensor(stored, role) for stored, role, _ in parts if stored is not None]


def _name(tensor: SourceTensor | None) -> str | None:
    return None if tensor is None else tensor.name


def _tensor(tensor: SourceTensor, role: str) -> ModelTensor:
    return ModelTensor(tensor.name, tensor, role, None)


def _labels(config: Config, count: int) -> tuple[str, ...]:
    """Return the names of the labels in order; transformers' own where none are stated."""
    stated = config.get("id2label")
    if stated is None:
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(stated, dict) or any(not isinstance(label, str) for label in stated.values()):
        raise config.fault("id2label", "an object of names", stated)
    names = tuple(stated.get(str(index)) for index in range(count))
    if len(stated) != count or None in names or len(set(names)) != count:
        raise config.fault("id2label", f"{count} different names, from 0 on", stated)
    return tuple(str(label) for label in names)


def _activation(config: Config, count: int) -> ClassifierActivation:
    """Return what makes probabilities of the logits.

    A reranking model may name it; otherwise the kind of problem decides, and where none is stated
    the number of labels: one is a score of its own, of several a text has exactly one.
    """
    stated = _stated_activation(config)
    if stated is not None:
        kind = str(stated).rpartition(".")[2]
        if kind not in _ACTIVATIONS:
            raise ConversionError(
                "this classifier has an activation that the format cannot express",
                where=config.where,
                expected=" or ".join(_ACTIVATIONS),
                found=stated,
            )
        return _ACTIVATIONS[kind]
    problem = config.get("problem_type")
    if problem is None:
        return "sigmoid" if count == 1 else "softmax"
    if problem not in _OF_PROBLEMS:
        raise config.fault("problem_type", " or ".join(_OF_PROBLEMS), problem)
    return _OF_PROBLEMS[problem]


def _stated_activation(config: Config) -> Any:
    """Return the activation that sentence-transformers wrote, in its newer or its older form."""
    newer, older = (
        config.get("sentence_transformers"),
        config.get("sbert_ce_default_activation_function"),
    )
    return newer.get("activation_fn", older) if isinstance(newer, dict) else older
