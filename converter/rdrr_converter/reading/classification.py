"""Reading the head of a checkpoint that classifies texts: `score`, a linear layer, and its labels.

Such a checkpoint is a language model whose output head is replaced by a layer with one row for each
label, which is applied to the last token. The package states it as an embedding with a projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.models import Classifier, EmbeddingPostprocessor
from rdrr_manifests.models.classifier import ClassifierActivation
from rdrr_manifests.models.embedding import Projection

from rdrr_converter.architectures import CLASSIFIER, Config, stated_names
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.reading.matching import ModelTensor

WEIGHT, BIAS = "score.weight", "score.bias"

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
    """The head of a model that classifies texts.

    Attributes:
        block: The pooling and the projection, as the manifest states them.
        classifier: The labels and the activation.
        tensors: Tensors of the projection.
    """

    block: EmbeddingPostprocessor
    classifier: Classifier
    tensors: tuple[ModelTensor, ...]


def without_head(source: Source) -> Source:
    """Return a checkpoint without the tensors of a classification head."""
    if not _classifies(source):
        return source
    kept = {name: tensor for name, tensor in source.tensors.items() if name not in (WEIGHT, BIAS)}
    return replace(source, tensors=kept)


def read_head(source: Source, config: Config, hidden_size: int) -> ClassificationHead | None:
    """Return the head of a checkpoint that classifies texts; None for other checkpoints.

    Args:
        source: The checkpoint.
        config: The configuration of the text model.
        hidden_size: Width of the hidden states that a head would read.

    Raises:
        SourceError: The head is missing or has the wrong shape, or the labels do not fit it.
        ConversionError: The configuration asks for an activation that the format lacks.
    """
    if not _classifies(source):
        return None
    weight, bias = source.tensors.get(WEIGHT), source.tensors.get(BIAS)
    if weight is None:
        raise SourceError(
            "the classification head is missing",
            where=source.path,
            expected=WEIGHT,
            found=f"{len(source.tensors)} tensors",
        )
    count = weight.shape[0] if weight.shape else 0
    for tensor, shape in ((weight, (count, hidden_size)), (bias, (count,))):
        if tensor is not None and (tensor.shape != shape or not count):
            raise SourceError(
                "a tensor has the wrong shape",
                where=f"{source.path}, {tensor.name}",
                expected=shape,
                found=tensor.shape,
            )
    layer = Projection(
        input_size=hidden_size,
        output_size=count,
        weight_tensor=WEIGHT,
        bias_tensor=None if bias is None else BIAS,
    )
    return ClassificationHead(
        EmbeddingPostprocessor(pooling_mode="last", projections=(layer,)),
        Classifier(labels=_labels(config, count), activation=_activation(config, count)),
        tuple(
            _tensor(stored, role) for stored, role in ((weight, "other"), (bias, "bias")) if stored
        ),
    )


def _classifies(source: Source) -> bool:
    return any(name.endswith(CLASSIFIER) for name in stated_names(source.config))


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
