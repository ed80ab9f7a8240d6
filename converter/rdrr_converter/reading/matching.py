"""Matching the tensors of a checkpoint with those of its architecture, by name and shape.

Every tensor of the checkpoint is either used, left out with a note, or an error. No weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rdrr_format.errors import SourceError
from rdrr_manifests.graph.mtp import MTP
from rdrr_manifests.graph.vision import VISION
from rdrr_manifests.models import Architecture, MoeConfig

from rdrr_converter.architectures import ArchitectureRule, Config, TensorRule
from rdrr_converter.architectures.tensors import EMBEDDING, HEAD
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.reading.expected_tensors import (
    ExpectedTensor,
    Shapes,
    expected_tensors,
    is_required,
)
from rdrr_converter.reading.finder import Finder

VISION_GROUP = "vision"
"""Group of the tensors of a vision tower."""

_MOST_MISSING = 1 << 16
"""Missing tensors that are counted."""

_MOST_EXTRA_LAYERS = 16
"""Layers for the prediction of further tokens that are looked for; published models have 1."""


@dataclass(frozen=True)
class ModelTensor:
    """One tensor of the model.

    Attributes:
        name: Canonical name, which is its name in the package.
        source: The checkpoint's tensor.
        role: Role in the manifest.
        layer: Index of its layer; None for a tensor outside the layers.
        expert: Index of its expert; None for a tensor outside the experts.
    """

    name: str
    source: SourceTensor
    role: str
    layer: int | None
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return self.source.shape

    @property
    def group(self) -> str:
        """Group in the manifest: embed, layer.N, layer.N.expert.M, layer.N.shared_expert, head.

        The tensors of a draft head are in the groups mtp and mtp.expert.M, those of a vision tower
        in the group vision.
        """
        if self.name.startswith(VISION):
            return VISION_GROUP
        if self.name.startswith(MTP):
            return "mtp" if self.expert is None else f"mtp.expert.{self.expert}"
        if self.layer is None:
            is_input = self.role == "embedding" or ".per_layer_" in self.name
            return "embed" if is_input else "head"
        if self.expert is not None:
            return f"layer.{self.layer}.expert.{self.expert}"
        part = ".shared_expert" if ".shared_expert" in self.name else ""
        return f"layer.{self.layer}{part}"


def match(
    source: Source,
    rule: ArchitectureRule,
    config: Config,
    sizes: Architecture,
    moe: MoeConfig | None,
    used: Collection[str] = (),
) -> tuple[tuple[ModelTensor, ...], list[str]]:
    """Return the model's tensors in storage order, and notes on tensors that are left out.

    Args:
        source: The checkpoint.
        rule: The architecture.
        config: The configuration.
        sizes: The manifest's `architecture`.
        moe: The experts that the configuration describes, or None.
        used: Names of tensors of the checkpoint that a draft head or a vision tower uses.

    Raises:
        SourceError: A tensor is missing, is unexpected or has the wrong shape.
    """
    rule = rule.named_by(config)
    if sizes.num_layers > len(source.tensors):
        most = f"at most {len(source.tensors)}, the number of tensors"
        raise config.fault("num_hidden_layers", most, sizes.num_layers)
    rows = max((tensor.rows for tensor in source.tensors.values() if tensor.columns), default=0)
    if moe is not None and moe.num_experts > rows:  # a router has one row per expert
        raise config.fault("the number of experts", f"at most {rows}", moe.num_experts)
    finder = Finder(source, rule, Shapes.of(rule, config, sizes, moe))
    matched: list[ModelTensor] = []
    missing: list[str] = []
    for expected in expected_tensors(rule, config, sizes.num_layers, moe):
        tensor = finder.find(expected)
        if tensor is None and expected.rule.name == EMBEDDING.name and is_tied(source, config):
            tensor = finder.find(ExpectedTensor(_head(rule)))
        if tensor is not None:
            name = expected.fill(expected.rule.name)
            matched.append(
                ModelTensor(name, tensor, expected.rule.role, expected.layer, expected.expert)
            )
        elif is_required(expected.rule, config):
            missing.append(
                finder.name_in_source(expected.fill(rule.published_name(expected.rule.name)))
            )
        if len(missing) == _MOST_MISSING:
            break  # layers with experts can expect billions
    if missing:
        count = f"{len(missing)}{' or more' * (len(missing) == _MOST_MISSING)}"
        raise SourceError(
            "a tensor is missing" if len(missing) == 1 else f"{count} tensors are missing",
            where=source.path,
            expected=_first_few(missing),
            found=f"{len(source.tensors)} tensors, for example {_first_few(list(source.tensors))}",
        )
    others = (*rule.other_parts, *_extra_layers(rule, config))
    notes = _check_leftovers(source, rule, finder.used | set(used), others, config)
    return tuple(matched), notes


def is_tied(source: Source, config: Config) -> bool:
    """Return whether the configuration says that the head is the embedding.

    A multimodal model states it beside `text_config`.
    """
    return config.flag("tie_word_embeddings") or source.config.get("tie_word_embeddings") is True


def _head(rule: ArchitectureRule) -> TensorRule:
    return next(row for row in rule.tensors if row.role == HEAD.role)


def required_names(
    rule: ArchitectureRule, config: Config, layers: int, moe: MoeConfig | None
) -> frozenset[str]:
    """Return the canonical names of all tensors that a configuration requires, except the head.

    Args:
        rule: The architecture.
        config: The configuration.
        layers: Number of layers.
        moe: The experts that the configuration describes, or None.
    """
    return frozenset(
        expected.fill(expected.rule.name)
        for expected in expected_tensors(rule, config, layers, moe)
        if is_required(expected.rule, config)
    )


@dataclass(frozen=True)
class RequiredTensor:
    """A tensor that a configuration requires.

    Attributes:
        name: Canonical name.
        role: Role in the manifest.
        shape: Its shape.
    """

    name: str
    role: str
    shape: tuple[int, ...]


def required_tensors(
    rule: ArchitectureRule, config: Config, sizes: Architecture, moe: MoeConfig | None
) -> Iterator[RequiredTensor]:
    """Yield all tensors that a configuration requires in storage order, without the head.

    Args:
        rule: The architecture.
        config: The configuration.
        sizes: The sizes that the configuration states.
        moe: The experts that the configuration describes, or None.
    """
    shapes = Shapes.of(rule, config, sizes, moe)
    for expected in expected_tensors(rule, config, sizes.num_layers, moe):
        if is_required(expected.rule, config):
            name, role = expected.fill(expected.rule.name), expected.rule.role
            yield RequiredTensor(name, role, shapes.shape(expected.rule, expected.layer))


def _extra_layers(rule: ArchitectureRule, config: Config) -> Iterator[str]:
    """Yield patterns of the tensors of layers that predict further tokens."""
    count = 0 if rule.extra_layers is None else config.get(rule.extra_layers) or 0
    if type(count) is not int or count < 0:
        raise config.fault(str(rule.extra_layers), "a number of layers", count)
    for layer in range(config.layers, config.layers + min(count, _MOST_EXTRA_LAYERS)):
        yield rf"(.*\.)?layers\.{layer}\..*"


def _check_leftovers(
    source: Source,
    rule: ArchitectureRule,
    used: set[str],
    other_parts: Sequence[str],
    config: Config,
) -> list[str]:
    """Return notes on tensors that are left out on purpose, and refuse unknown ones."""
    extra = [name for name in source.tensors if name not in used]
    others = [name for name in extra if _fits(name, other_parts)]
    computed = [name for name in extra if _fits(name, rule.ignored)]
    patterns = () if rule.unused is None else tuple(rule.unused(config))
    unread = [name for name in extra if _fits(name, patterns)]
    known = {*others, *computed, *unread}
    unknown = [name for name in extra if name not in known]
    if unknown:
        raise SourceError(
            f"unexpected tensors for architecture {rule.name}",
            where=source.path,
            expected="only tensors of the architecture",
            found=f"{len(unknown)} more: {_first_few(unknown)}",
        )
    notes = [
        f"{name}: left out, because it is computed when the model is loaded" for name in computed
    ]
    if others:
        notes.append(
            f"{len(others)} tensors that are not part of the text model are left out: "
            f"{_first_few(others)}"
        )
    if unread:
        notes.append(
            f"{len(unread)} tensors that the model never reads are left out: {_first_few(unread)}"
        )
    return notes


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _first_few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
