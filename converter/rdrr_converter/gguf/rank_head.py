"""Heads of models that rank or classify texts, in GGUF files.

llama.cpp names their layers `cls`, `cls.norm` and `cls.output`. Which of them there are, which
tokens they read and what follows them depends on the architecture, so a row states it (`RankForm`).
For Qwen3-Reranker the last layer holds the rows of the output matrix for the tokens `yes` and `no`,
and the softmax of the two logits is the result; encoders give the logits.

A file is read as a checkpoint that classifies texts. llama.cpp's converter writes no pooling for
such encoders and leaves out the first layer of BERT, whose scores are then others, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests import rank_question
from rdrr_manifests.models import Classifier, EmbeddingPostprocessor
from rdrr_manifests.models.embedding import Projection

from rdrr_converter.architectures.base import SEQUENCE, HeadLayer, HeadRule

RANK = 4
"""The value of `pooling_type` of ranking models."""

_DENSE, _NORM, _OUT = "cls", "cls.norm", "cls.output"
_LABELS = "classifier.output_labels"

_RERANK_TEMPLATE = "tokenizer.chat_template.rerank"
_QUESTION = f"{rank_question.BEFORE}{rank_question.PAIR}{rank_question.AFTER}".replace(
    "{instruction}", rank_question.INSTRUCTION
)
"""The question of the published Qwen3-Reranker models, as llama.cpp's server fills it in."""

_WITHOUT_DENSE = (
    "the file lacks the first layer of the head, as those of llama.cpp's converter do: the scores "
    "are those of llama.cpp, not those of the published model"
)
_OTHER_ACTIVATION = (
    "a GGUF does not state what makes probabilities of the scores: readers take a sigmoid of one "
    "label and a softmax of several, which this model does not"
)

_GELUS = ("gelu", "gelu_erf")
"""Activations that llama.cpp computes alike."""


@dataclass(frozen=True)
class RankForm:
    """How llama.cpp computes the head of a ranking model of one architecture.

    Attributes:
        modules: Names of the layers in a checkpoint, by llama.cpp's, in order. The last one is
            there in every file.
        pooling: What the first layer reads: `cls`, `last` or `mean`.
        activation: What follows `cls`.
        biases: The layers whose bias llama.cpp adds, by its names.
        has_softmax: Whether a softmax follows the last layer.
    """

    modules: Mapping[str, str]
    pooling: str
    activation: str = "identity"
    biases: tuple[str, ...] = ()
    has_softmax: bool = False

    @property
    def linear(self) -> tuple[str, ...]:
        """The linear layers by llama.cpp's names."""
        return tuple(name for name in self.modules if name != _NORM)

    def __str__(self) -> str:
        """Return the head in words, for messages."""
        layers = [
            f"{name} {'with' if name in self.biases else 'without'} a bias, {self._after(name)}"
            + (f", {_NORM} without a bias" if name == _DENSE and _NORM in self.modules else "")
            for name in self.linear
        ]
        softmax = ["softmax"] if self.has_softmax else []
        return ", ".join((f"pooling {self.pooling}", *layers, *softmax))

    def rule(self, tensors: Collection[str]) -> HeadRule:
        """Return the head of a file with these tensors, by llama.cpp's names."""
        layers = tuple(
            HeadLayer(
                self.modules[name],
                self._after(name),
                self.modules.get(_NORM, "") if name == _DENSE else "",
            )
            for name in self.linear
            if f"{name}.weight" in tensors
        )
        return HeadRule(SEQUENCE, self.pooling, layers)

    def names(self, tensors: Collection[str]) -> dict[str, str]:
        """Return the names in a checkpoint of the tensors of the head, by llama.cpp's."""
        parts = [(name, "weight") for name in self.modules]
        parts += [(name, "bias") for name in self.biases]
        names = {f"{name}.{kind}": f"{self.modules[name]}.{kind}" for name, kind in parts}
        return {theirs: ours for theirs, ours in names.items() if theirs in tensors}

    def layers(self, block: EmbeddingPostprocessor) -> dict[str, Projection]:
        """Return the layers of a package by llama.cpp's names; none if it has no such head."""
        layers = block.projections
        names = self.linear[-len(layers) :] if layers else ()
        if block.pooling_mode != self.pooling or len(names) != len(layers):
            return {}
        pairs = dict(zip(names, layers, strict=True))
        return pairs if all(self._fits(*pair) for pair in pairs.items()) else {}

    def _after(self, name: str) -> str:
        return self.activation if name == _DENSE else "identity"

    def _fits(self, name: str, layer: Projection) -> bool:
        """Return whether llama.cpp computes a layer as the package does."""
        alike = _GELUS if self._after(name) in _GELUS else (self._after(name),)
        has_norm = name == _DENSE and _NORM in self.modules
        return (
            layer.activation in alike
            and (layer.bias_tensor is None or name in self.biases)
            and (layer.norm_tensor is not None) is has_norm
            and layer.norm_bias_tensor is None
            and (layer.output_size == 1 or name == _OUT or _OUT in self.modules)
        )


@dataclass(frozen=True)
class RankHead:
    """What a GGUF states of the head of a ranking model.

    Attributes:
        names: Names of its tensors in a checkpoint, by llama.cpp's; empty without such a head.
        config: Keys of the configuration.
        rule: What the file has in place of an output head; None without such a head.
        notes: Notes for the user.
    """

    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    rule: HeadRule | None = None
    notes: tuple[str, ...] = ()


def read_rank_head(
    metadata: Mapping[str, Any],
    name: str,
    form: RankForm | None,
    shapes: Mapping[str, tuple[int, ...]],
    where: object,
) -> RankHead:
    """Return the head of a ranking model of the form that llama.cpp writes, if there is one.

    Args:
        metadata: Metadata of the file.
        name: `general.architecture`.
        form: The head of its models; None if llama.cpp has none.
        shapes: Shapes of the tensors by llama.cpp's names.
        where: The file, for messages.

    Raises:
        SourceError: The head is missing, or the labels do not fit it.
    """
    kind = metadata.get(f"{name}.pooling_type")
    if form is None or kind not in (None, RANK):
        return RankHead()
    last = form.linear[-1]
    if f"{last}.weight" not in shapes:
        if kind is None:
            return RankHead()
        raise SourceError(
            "the head of a ranking model is missing",
            where=f"{where}, {name}.pooling_type {RANK}",
            expected=f"a tensor {last}.weight",
            found=f"{len(shapes)} tensors without it",
            hint="convert the checkpoint of the model instead",
        )
    shape = shapes[f"{last}.weight"]
    labels = _read_labels(
        metadata.get(f"{name}.{_LABELS}"),
        shape[0] if len(shape) > 1 else 1,
        f"{where}, {name}.{_LABELS}",
    )
    config: dict[str, Any] = {"id2label": {str(at): label for at, label in enumerate(labels)}}
    if form.has_softmax:
        config["problem_type"] = "single_label_classification"
    rule = form.rule(shapes)
    notes = () if len(rule.layers) > 1 or form.has_softmax else (_WITHOUT_DENSE,)
    return RankHead(form.names(shapes), config, rule, notes)


def _read_labels(stated: object, count: int, where: str) -> list[str]:
    """Return the names of the labels; llama.cpp has one score where a file states none.

    Raises:
        SourceError: They are not as many different names as the head has rows.
    """
    if stated is None and count == 1:
        return ["LABEL_0"]
    labels = stated if isinstance(stated, list) else []
    if len({label for label in labels if isinstance(label, str)}) != count or len(labels) != count:
        raise SourceError(
            "the labels do not fit the rows of the head",
            where=where,
            expected=f"{count} different names",
            found="nothing" if stated is None else stated,
            hint="convert the checkpoint of the model instead",
        )
    return labels


def rank_entries(
    classifier: Classifier, block: EmbeddingPostprocessor, name: str, form: RankForm | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the metadata of a head that llama.cpp has for ranking models, and notes.

    Args:
        classifier: The labels of a package.
        block: Its pooling and the layers of its head.
        name: `general.architecture`.
        form: The head of its models; None if llama.cpp has none.

    Raises:
        ConversionError: llama.cpp has no such head.
    """
    if form is None or not form.layers(block):
        raise ConversionError(
            "llama.cpp has no such classification head",
            expected=f"none for {name}" if form is None else f"in {name}, {form}",
            found=_described(block),
            hint="export it `to` safetensors",
        )
    is_usual = classifier.activation == ("sigmoid" if len(classifier.labels) == 1 else "softmax")
    if form.has_softmax and classifier.activation != "softmax":
        raise ConversionError(
            "llama.cpp has no such classification head",
            expected=f"the softmax of the scores, in {name}",
            found=f"{classifier.activation}, {len(classifier.labels)} labels",
            hint="export it `to` safetensors",
        )
    entries: dict[str, Any] = {
        f"{name}.pooling_type": RANK,
        f"{name}.{_LABELS}": list(classifier.labels),
    }
    if form.has_softmax and classifier.labels == ("yes", "no"):
        entries |= {"tokenizer.chat_templates": ["rerank"], _RERANK_TEMPLATE: _QUESTION}
    notes = () if form.has_softmax or is_usual else (_OTHER_ACTIVATION,)
    return entries, notes


def rank_names(block: EmbeddingPostprocessor, form: RankForm | None) -> dict[str, str]:
    """Return llama.cpp's names of the tensors of a head, by their stored names."""
    layers = {} if form is None else form.layers(block)
    stored = {f"{name}.weight": layer.weight_tensor for name, layer in layers.items()} | {
        f"{name}.bias": layer.bias_tensor for name, layer in layers.items()
    }
    if _DENSE in layers:
        stored[f"{_NORM}.weight"] = layers[_DENSE].norm_tensor
    return {ours: theirs for theirs, ours in stored.items() if ours is not None}


def _described(block: EmbeddingPostprocessor) -> str:
    """Return the pooling and the layers of a head, for messages."""
    layers = [
        f"a layer {'with' if layer.bias_tensor else 'without'} a bias, {layer.activation}"
        + (
            ", a norm" + (" with a bias" if layer.norm_bias_tensor else "")
            if layer.norm_tensor
            else ""
        )
        for layer in block.projections
    ]
    return ", ".join((f"pooling {block.pooling_mode}", *layers))
