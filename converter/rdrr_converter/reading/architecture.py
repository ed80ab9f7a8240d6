"""The refusal of an unknown architecture: what is missing of it, and the nearest one that converts.

The nearest architecture is the one that most kinds of the checkpoint's tensors belong to. A kind is
a name without the numbers of layers and experts, and without the prefix of the model. If most kinds
belong to no architecture, none is named. No weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

from rdrr_format.errors import ConversionError, RdrrError

from rdrr_converter.architectures import (
    ARCHITECTURES,
    ArchitectureRule,
    Config,
    find_architecture,
    read_block,
    stated_names,
    states_another_family,
)
from rdrr_converter.architectures._aliases import NOT_COMPUTED, plain_name
from rdrr_converter.architectures.base import BODY
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.reading.unread_keys import unread_keys

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_FIELD = re.compile(r"\{\w+\}")
_LISTED = 3
_PLAIN = "llama"
_SAME_NAME = 0.8
"""Similarity from which one name is probably the other one, misspelled."""

_ENOUGH = 0.5
"""Share of the kinds of tensors from which one architecture is like another."""


@dataclass(frozen=True)
class NearestArchitecture:
    """The architecture that is most like a checkpoint.

    Attributes:
        rule: The architecture.
        unknown: Kinds of tensors that the checkpoint has and the architecture does not.
        unread: Keys of the configuration that the architecture does not read.
        common: Share of the kinds of tensors that the architecture has.
        absent: Number of kinds of tensors that the architecture needs and the checkpoint lacks.
        alike: Similarity of the names, 0 to 1.
        score: Similarity, for comparison only.
    """

    rule: ArchitectureRule
    unknown: tuple[str, ...]
    unread: tuple[str, ...]
    common: float
    absent: int
    alike: float
    score: tuple[float, ...]

    def describe(self) -> str:
        """Return what the architecture lacks of the checkpoint, in half a sentence."""
        if self.common < _ENOUGH and self.alike < _SAME_NAME:
            return "none that converts has most of its tensors"
        lacks = []
        if self.unknown:
            lacks.append(f"has no tensors {_first_few(self.unknown)}")
        if self.unread:
            lacks.append(f"does not read {_first_few(self.unread)}")
        difference = ", and ".join(lacks) or "has all of its tensors and reads all of its keys"
        start = "did you mean" if self.alike >= _SAME_NAME else "the nearest that converts is"
        return f"{start} {self.rule.name}, which {difference}"

    @property
    def fits(self) -> bool:
        """Whether the tensors of the checkpoint are those of the architecture."""
        return not self.unknown and not self.absent


def choose_architecture(source: Source, override: str | None) -> ArchitectureRule:
    """Find the architecture of a checkpoint.

    Args:
        source: The checkpoint.
        override: Name, alias or class to use instead of the configuration's.

    Raises:
        ConversionError: The configuration names no supported architecture; the hint describes the
            nearest one.
        UsageError: `override` names no supported architecture.
    """
    try:
        return find_architecture(source.config, override, source.config_path)
    except ConversionError as error:
        nearest = nearest_architecture(source)
        error.hint = f"{_reason(source) or nearest.describe()}; {error.hint}"
        error.args = (error.line(),)
        if nearest.fits:
            family = states_another_family(source.text_config, nearest.rule)
            unread = nearest.unread if family is None else (family, *nearest.unread)
            error.offer(arch=nearest.rule.name, allow_unread=unread)
        raise


def _reason(source: Source) -> str | None:
    """Return why a family does not convert although another one is much like it, if it is known."""
    names = [plain_name(name) for name in stated_names(source.config)]
    return next(
        (
            reason
            for family, reason in NOT_COMPUTED.items()
            if any(name.startswith(family) for name in names)
        ),
        None,
    )


def nearest_architecture(source: Source) -> NearestArchitecture:
    """Return the architecture that is most like a checkpoint."""
    return max(
        (_compare(source, rule) for rule in ARCHITECTURES), key=lambda candidate: candidate.score
    )


def _compare(source: Source, rule: ArchitectureRule) -> NearestArchitecture:
    prefix = _prefix(source, rule)
    names = [name for row in rule.tensors for name in (row.name, *row.aliases)]
    names += [rule.published_name(row.name) for row in rule.tensors]
    names += [stack.name for stack in rule.stacks]
    known = {_kind(prefix + _without_body(name, rule)) for name in names}
    known |= {_kind(name) for name in names if _without_body(name, rule) == name}
    others = [*rule.ignored, *rule.other_parts]
    kinds = dict.fromkeys(
        _kind(name)
        for name in source.tensors
        if not any(re.fullmatch(pattern, name) for pattern in others)
    )
    unknown = tuple(kind for kind in kinds if kind not in known)
    fitting = len(kinds) - len(unknown)
    alike = max(
        (
            SequenceMatcher(None, ours.lower(), theirs.lower()).ratio()
            for ours in stated_names(source.config)
            for theirs in (rule.name, *rule.classes)
        ),
        default=0.0,
    )
    needed = {
        frozenset(
            _kind(prefix + _without_body(name, rule))
            for name in (row.name, rule.published_name(row.name))
        )
        for row in rule.tensors
        if row.required is True
    }
    absent = sum(forms.isdisjoint(kinds) for forms in needed)
    unread = _unread(source, rule)
    # Names that are not nearly equal say nothing; most models that fit several are plain Llamas.
    name = alike if alike >= _SAME_NAME else 0.0
    score = (fitting - len(unknown), -len(unread), -absent, name, rule.name == _PLAIN)
    common = fitting / max(len(kinds), 1)
    return NearestArchitecture(rule, unknown, unread, common, absent, alike, score)


def _without_body(name: str, rule: ArchitectureRule) -> str:
    """Return the name of a tensor, canonical or in checkpoints, without the prefix of the model."""
    return name.removeprefix(rule.body) if name.startswith(rule.body) else name.removeprefix(BODY)


def _prefix(source: Source, rule: ArchitectureRule) -> str:
    """Return what a checkpoint has before the names of the architecture: before its embedding."""
    embedding = _without_body(rule.published_name(f"{BODY}embed_tokens.weight"), rule)
    prefixes = (
        name.removesuffix(embedding)
        for name in source.tensors
        if name == embedding or name.endswith(f".{embedding}")
    )
    return next(prefixes, rule.prefixes[0])


def _kind(name: str) -> str:
    """Return a tensor's name, or the pattern of names in a rule, without numbers."""
    return _NUMBER.sub("*", _FIELD.sub("*", name))


def _unread(source: Source, rule: ArchitectureRule) -> tuple[str, ...]:
    config = Config(source.text_config, rule.defaults, source.config_path)
    for block in (rule.attention, rule.normalization, rule.ffn, rule.output, rule.experts or {}):
        for key, value in block.items():
            try:
                read_block({key: value}, config)
            except RdrrError:
                continue  # the value cannot be used, but its key is one that is read
    rules: list[object] = [rule.rope, rule.layer_types]
    rules += [condition for row in rule.tensors for condition in (row.required, row.layers)]
    for read in rules:
        try:
            if callable(read):
                read(config)
        except RdrrError:
            continue
    return tuple(key for key in unread_keys(config, rule) if key not in _READ_BY_ALL)


_READ_BY_ALL = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "tie_word_embeddings",
    "text_config",
)
"""Keys that the reader of every architecture reads, outside of its rules."""


def _first_few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more
