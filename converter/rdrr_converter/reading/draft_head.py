"""The draft head of a checkpoint: the layer with which it predicts a second token.

Such a head has a projection of [embedding, hidden state], norms of the two, one decoder layer and a
final norm (see `rdrr_manifests.graph.mtp`). Checkpoints of Qwen name them as packages do; those of
DeepSeek and GLM, and GGUF files, count the head as a layer after the last one and also repeat the
embedding and the output matrix in it, which are those of the model.

A head that is incomplete, or not of this form, is left out, since the model runs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from rdrr_format.errors import SourceError
from rdrr_manifests.graph import mtp
from rdrr_manifests.models import Architecture, MoeConfig

from rdrr_converter.architectures import ArchitectureRule, Config, TensorRule
from rdrr_converter.architectures.base import StackRule
from rdrr_converter.architectures.layers import FULL
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.gguf.draft_head import AS_A_LAYER
from rdrr_converter.reading.expected_tensors import ExpectedTensor, Shapes, is_required
from rdrr_converter.reading.finder import Finder
from rdrr_converter.reading.matching import ModelTensor

_LAYER = "model.layers.{layer}."


@dataclass(frozen=True)
class DraftHead:
    """The draft head of a checkpoint.

    Attributes:
        tensors: Its tensors in storage order.
        used: Their names in the checkpoint.
        notes: Notes for the user.
    """

    tensors: tuple[ModelTensor, ...] = ()
    used: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


NO_DRAFT_HEAD = DraftHead()


def match_draft_head(
    source: Source,
    rule: ArchitectureRule,
    config: Config,
    sizes: Architecture,
    moe: MoeConfig | None,
) -> DraftHead:
    """Return the draft head of a checkpoint, if it has one that can be used."""
    last = _last_full_layer(rule, config)
    if not rule.has_draft_head or last is None:
        return NO_DRAFT_HEAD
    head = _rule_of_head(rule, config, last)
    finder = Finder(source, head, Shapes.of(head, config, sizes, moe))
    projection = finder.names_in_source(ExpectedTensor(head.tensors[0]))
    if not any(name in source.tensors for name in projection.values()):
        return NO_DRAFT_HEAD
    if config.get("mtp_use_dedicated_embeddings"):
        return _unusable("it has an embedding of its own")
    tensors: list[ModelTensor] = []
    try:
        for row, expert in _expected(head.tensors, moe):
            expected = ExpectedTensor(row, expert=expert)
            name, tensor = expected.fill(row.name), finder.find(expected)
            if tensor is not None:
                tensors.append(ModelTensor(name, tensor, row.role, None, expert))
            elif is_required(row, config):
                return _unusable(f"{name} is missing")
    except SourceError as error:
        return _unusable(str(error))
    return DraftHead(tuple(tensors), frozenset(finder.used))


def _unusable(why: str) -> DraftHead:
    note = f"the head for multi-token prediction cannot be used, so it is not converted: {why}"
    return DraftHead(notes=(note,))


def _last_full_layer(rule: ArchitectureRule, config: Config) -> int | None:
    """Return the last layer with full attention, which the layer of the head is like."""
    kinds = rule.layer_types(config)
    return max((at for at, kind in enumerate(kinds) if kind == FULL), default=None)


def _rule_of_head(rule: ArchitectureRule, config: Config, like: int) -> ArchitectureRule:
    """Return an architecture that has the tensors of the head, and no others."""
    as_a_layer = _LAYER.format(layer=config.layers)
    rename = partial(_renamed, as_a_layer=as_a_layer)
    layer = [rename(row) for row in rule.tensors if row.is_per_layer and _has(row, config, like)]
    of_head = [
        TensorRule(
            f"{name}.weight",
            "matmul" if name == mtp.PROJECTION else "norm",
            ("hidden", "two_hidden") if name == mtp.PROJECTION else ("hidden",),
            aliases=(f"{as_a_layer}{alias}.weight",),
        )
        for name, alias in AS_A_LAYER.items()
    ]
    names = {row.name for row in layer}
    stacks = [
        replace(stack, name=stem + stack.name.removeprefix(_LAYER), parts=parts)
        for stack in rule.stacks
        for stem in (mtp.LAYER, as_a_layer)
        if set(parts := _parts(stack)) <= names
    ]
    return replace(
        rule,
        tensors=(*of_head, *layer),
        stacks=tuple(stacks),
        dimensions={**rule.dimensions, "two_hidden": _two_hidden},
    )


def _two_hidden(config: Config) -> int:
    return 2 * config.integer("hidden_size")


def _has(row: TensorRule, config: Config, layer: int) -> bool:
    layers: Callable[[Config], Collection[int]] | None = row.layers
    return layers is None or layer in layers(config)


def _renamed(row: TensorRule, as_a_layer: str) -> TensorRule:
    """Return the row of a layer's tensor for the layer of the head."""
    part = row.name.removeprefix(_LAYER)
    others = [alias.removeprefix(_LAYER) for alias in row.aliases]
    aliases = [f"{stem}{name}" for stem in (mtp.LAYER, as_a_layer) for name in (part, *others)]
    return replace(row, name=aliases[0], aliases=tuple(aliases[1:]), layers=None)


def _parts(stack: StackRule) -> tuple[str, ...]:
    return tuple(mtp.LAYER + part.removeprefix(_LAYER) for part in stack.parts)


def _expected(
    rows: tuple[TensorRule, ...], moe: MoeConfig | None
) -> Iterator[tuple[TensorRule, int | None]]:
    """Yield every tensor that the head may have, those of an expert after each other."""
    yield from ((row, None) for row in rows if not row.is_per_expert)
    for expert in range(moe.num_experts if moe else 0):
        yield from ((row, expert) for row in rows if row.is_per_expert)
