"""Matching the tensors of a checkpoint with those of its architecture, by name and shape.

Every tensor of the checkpoint is either used, left out with a note, or an error. No weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod

from rdrr_format.errors import SourceError
from rdrr_manifests.models import Architecture, MoeConfig

from rdrr_converter.architectures import ArchitectureRule, Config, TensorRule
from rdrr_converter.architectures.base import BODY, Arrangement, StackRule
from rdrr_converter.arrangements import stacked_shape, take_apart
from rdrr_converter.grouped_rows import Piece, rows_of_parts, with_rows
from rdrr_converter.sources import Source, SourceTensor
from rdrr_converter.stacks import join_rows, transposed, unstack, unstack_groups

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
        """Group in the manifest: embed, layer.N, layer.N.expert.M, layer.N.shared_expert, head."""
        if self.layer is None:
            is_input = self.role == "embedding" or ".per_layer_" in self.name
            return "embed" if is_input else "head"
        if self.expert is not None:
            return f"layer.{self.layer}.expert.{self.expert}"
        part = ".shared_expert" if ".shared_expert" in self.name else ""
        return f"layer.{self.layer}{part}"


@dataclass(frozen=True)
class _ExpectedTensor:
    """A tensor that the architecture allows, for one layer and expert."""

    rule: TensorRule
    layer: int | None = None
    expert: int | None = None

    def fill(self, name: str) -> str:
        """Insert the indices of this layer and expert into a name."""
        return name.format(layer=self.layer, expert=self.expert)


def match(
    source: Source,
    rule: ArchitectureRule,
    config: Config,
    sizes: Architecture,
    moe: MoeConfig | None,
) -> tuple[tuple[ModelTensor, ...], list[str]]:
    """Return the model's tensors in storage order, and notes on tensors that are left out.

    Raises:
        SourceError: A tensor is missing, is unexpected or has the wrong shape.
    """
    if sizes.num_layers > len(source.tensors):
        most = f"at most {len(source.tensors)}, the number of tensors"
        raise config.fault("num_hidden_layers", most, sizes.num_layers)
    rows = max((tensor.rows for tensor in source.tensors.values()), default=0)
    if moe is not None and moe.num_experts > rows:  # a router has one row per expert
        raise config.fault("the number of experts", f"at most {rows}", moe.num_experts)
    finder = _Finder(source, rule, _Shapes.of(rule, config, sizes, moe))
    found: list[ModelTensor] = []
    missing: list[str] = []
    for wanted in _expected_tensors(rule, config, sizes.num_layers, moe):
        tensor = finder.find(wanted)
        if tensor is not None:
            name = wanted.fill(wanted.rule.name)
            found.append(ModelTensor(name, tensor, wanted.rule.role, wanted.layer, wanted.expert))
        elif _is_required(wanted.rule, config):
            missing.append(
                finder.name_in_source(wanted.fill(rule.published_name(wanted.rule.name)))
            )
    if missing:
        raise SourceError(
            "a tensor is missing" if len(missing) == 1 else f"{len(missing)} tensors are missing",
            where=source.path,
            expected=_first_few(missing),
            found=f"{len(source.tensors)} tensors, for example {_first_few(list(source.tensors))}",
        )
    others = (*rule.other_parts, *_extra_layers(rule, config))
    notes = _check_leftovers(source, rule, finder.used, others, config)
    return tuple(found), notes


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
    expected_tensors = _expected_tensors(rule, config, layers, moe)
    return frozenset(
        wanted.fill(wanted.rule.name)
        for wanted in expected_tensors
        if _is_required(wanted.rule, config)
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
    shapes = _Shapes.of(rule, config, sizes, moe)
    for wanted in _expected_tensors(rule, config, sizes.num_layers, moe):
        if _is_required(wanted.rule, config):
            name, role = wanted.fill(wanted.rule.name), wanted.rule.role
            yield RequiredTensor(name, role, shapes.shape(wanted.rule, wanted.layer))


@dataclass(frozen=True)
class _Shapes:
    """The sizes of the dimensions that rules name.

    Attributes:
        dimensions: Size of each dimension.
        of_layer: Returns the dimensions of a layer that differ from those; None if none do.
    """

    dimensions: Mapping[str, int]
    of_layer: Callable[[int], Mapping[str, int]] | None

    @staticmethod
    def of(
        rule: ArchitectureRule, config: Config, sizes: Architecture, moe: MoeConfig | None
    ) -> _Shapes:
        """Return the sizes of a configuration."""
        more = {name: read(config) for name, read in rule.dimensions.items()}
        layer = None if rule.layer_dimensions is None else partial(rule.layer_dimensions, config)
        return _Shapes(_dimensions(sizes, moe) | more, layer)

    def shape(self, rule: TensorRule, layer: int | None) -> tuple[int, ...]:
        """Return the shape of a tensor in a layer."""
        own = {} if self.of_layer is None or layer is None else self.of_layer(layer)
        return tuple(own.get(size) or self.dimensions[size] for size in rule.shape)


def _dimensions(sizes: Architecture, moe: MoeConfig | None) -> dict[str, int]:
    found = {
        "vocab": sizes.vocab_size,
        "hidden": sizes.hidden_size,
        "inner": sizes.intermediate_size,
        "q": sizes.num_attention_heads * sizes.head_dim,
        "kv": sizes.num_key_value_heads * sizes.head_dim,
        "head": sizes.head_dim,
        "heads": sizes.num_attention_heads,
        "kv_heads": sizes.num_key_value_heads,
        "one": 1,
    }
    if sizes.linear_num_value_heads is not None:
        found |= _linear_dimensions(sizes)
    if sizes.kv_lora_rank is not None:
        found |= _latent_dimensions(sizes, sizes.kv_lora_rank)
    if moe is not None:
        width = moe.expert_intermediate_size or sizes.intermediate_size
        shared = moe.shared_expert_intermediate_size or width
        found |= {"experts": moe.num_experts, "width": width, "shared": shared}
    return found


def _linear_dimensions(sizes: Architecture) -> dict[str, int]:
    """Return the dimensions of linear attention, and of queries with output gates beside them."""
    heads, key_heads = sizes.linear_num_value_heads or 0, sizes.linear_num_key_heads or 0
    value_dim, key_dim = sizes.linear_value_head_dim or 0, sizes.linear_key_head_dim or 0
    return {
        "gated_q": 2 * sizes.num_attention_heads * sizes.head_dim,
        "linear_heads": heads,
        "linear_heads_per_key": heads // max(key_heads, 1),
        "linear_key_heads": key_heads,
        "linear_key_head": key_dim,
        "linear_v_per_key": heads * value_dim // max(key_heads, 1),
        "linear_head": value_dim,
        "linear_v": heads * value_dim,
        "linear_qkv": 2 * key_heads * key_dim + heads * value_dim,
        "taps": sizes.linear_conv_kernel_dim or 0,
    }


def _latent_dimensions(sizes: Architecture, latent: int) -> dict[str, int]:
    """Return the dimensions of multi-head latent attention."""
    heads, rope = sizes.num_attention_heads, sizes.qk_rope_head_dim or 0
    key, value = sizes.qk_nope_head_dim or 0, sizes.v_head_dim or 0
    return {
        "latent": latent,
        "latent_and_key": latent + rope,
        "q_latent": sizes.q_lora_rank or 0,
        "q": heads * (key + rope),
        "values": heads * value,
        "keys_and_values": heads * (key + value),
    }


def _expected_tensors(
    rule: ArchitectureRule, config: Config, layers: int, moe: MoeConfig | None
) -> Iterator[_ExpectedTensor]:
    """Yield every tensor that the model may have, in storage order."""
    per_layer = [row for row in rule.tensors if row.is_per_layer]
    first = rule.tensors.index(per_layer[0])
    yield from (_ExpectedTensor(row) for row in rule.tensors[:first])
    owners = {row.name: frozenset(row.layers(config)) for row in per_layer if row.layers}
    for layer in range(layers):
        own = [row for row in per_layer if layer in owners.get(row.name, (layer,))]
        for is_per_expert, rows in groupby(own, lambda row: row.is_per_expert):
            numbers = range(moe.num_experts) if is_per_expert and moe else (None,)
            kept = list(rows)
            yield from (_ExpectedTensor(row, layer, number) for number in numbers for row in kept)
    yield from (_ExpectedTensor(row) for row in rule.tensors[first:] if not row.is_per_layer)


class _Finder:
    """A lookup of tensors by canonical name that also finds parts of stacked tensors."""

    def __init__(self, source: Source, rule: ArchitectureRule, shapes: _Shapes) -> None:
        self.used: set[str] = set()
        self._path = source.path
        self._rule = rule
        self._tensors = source.tensors
        self._stacks = rule.stacks
        self._rows = {row.name: row for row in rule.tensors}
        self._dimensions = shapes.dimensions
        self._shape = shapes.shape
        self._parts: dict[str, SourceTensor] = {}
        embedding = rule.published_name(f"{BODY}embed_tokens.weight").removeprefix(rule.body)
        self._prefix = next(
            (p for p in rule.prefixes if f"{p}{embedding}" in source.tensors), rule.prefixes[0]
        )

    def name_in_source(self, name: str) -> str:
        """Return the name that this checkpoint uses for the usual name in checkpoints."""
        body = self._rule.body
        return self._prefix + name.removeprefix(body) if name.startswith(body) else name

    def find(self, wanted: _ExpectedTensor) -> SourceTensor | None:
        """Find a tensor; return None if the checkpoint does not have it.

        Raises:
            SourceError: The tensor, or the stack that contains it, has the wrong shape.
        """
        published, canonical = self._rule.published_name(wanted.rule.name), wanted.rule.name
        # A GGUF is read with canonical names, and in the usual order of rows and columns.
        for name in dict.fromkeys((published, canonical, *wanted.rule.aliases)):
            tensor = self._tensors.get(self.name_in_source(wanted.fill(name)))
            if tensor is not None:
                self.used.add(tensor.name)
                if name == published and self._rule.is_transposed(canonical):
                    tensor = transposed(tensor)
                _check_shape(tensor, self._shape(wanted.rule, wanted.layer))
                return tensor
        name = wanted.fill(canonical)
        if name not in self._parts:
            for stack in self._stacks:
                if canonical in stack.parts:
                    self._unstack(stack, wanted)
        if name not in self._parts:
            self._join_rows(wanted)
        return self._parts.get(name)

    def _join_rows(self, wanted: _ExpectedTensor) -> None:
        """Join the tensors that are the rows of a tensor, if the checkpoint has the first."""
        name, shape = wanted.fill(wanted.rule.name), self._shape(wanted.rule, wanted.layer)
        names = [
            self.name_in_source(one) for one in self._rule.row_names(name, shape[0] if shape else 1)
        ]
        if not names or names[0] not in self._tensors:
            return
        missing = [one for one in names if one not in self._tensors]
        if missing:
            raise SourceError(
                "a tensor is missing", where=self._path, expected=missing[0], found=names[0]
            )
        parts = [self._tensors[one] for one in names]
        for part in parts:
            _check_shape(part, shape[1:])
        self.used.update(names)
        self._parts[name] = join_rows(name, parts)

    def _unstack(self, stack: StackRule, wanted: _ExpectedTensor) -> None:
        whole = self._tensors.get(self.name_in_source(wanted.fill(stack.name)))
        if whole is None:
            return
        if stack.pieces:
            self._parts |= self._in_pieces(stack, whole, wanted)
            return
        if stack.arrangement is not None:
            self._parts |= self._arranged(stack, stack.arrangement, whole, wanted)
            return
        parts, stored = stack.parts, whole
        if stack.transposed:
            whole = transposed(whole)
        is_per_expert = self._rows[parts[0]].is_per_expert
        numbers = range(self._dimensions["experts"]) if is_per_expert else (None,)
        names = [
            part.format(layer=wanted.layer, expert=number) for number in numbers for part in parts
        ]
        shapes = [self._shape(self._rows[part], wanted.layer) for _ in numbers for part in parts]
        self.used.add(stored.name)
        groups = self._dimensions["kv_heads"] if stack.by_head else 1
        if len(shapes[0]) == 1 or groups > 1:
            total = sum(shape[0] for shape in shapes)
            _check_shape(whole, (total, *shapes[0][1:]))
            self._parts |= dict(zip(names, unstack_groups(whole, shapes, groups), strict=True))
            return
        columns = shapes[0][-1]
        rows = sum(prod(shape[:-1]) for shape in shapes)
        leading = (len(numbers), rows // len(numbers)) if is_per_expert else (rows,)
        _check_shape(whole, (*leading, columns))
        matrices = unstack(whole, [(prod(shape[:-1]), columns) for shape in shapes])
        self._parts |= dict(zip(names, matrices, strict=True))

    def _in_pieces(
        self, stack: StackRule, whole: SourceTensor, wanted: _ExpectedTensor
    ) -> dict[str, SourceTensor]:
        """Return the parts of a stack whose rows alternate in pieces, by their names."""
        shapes = [self._shape(self._rows[part], wanted.layer) for part in stack.parts]
        _check_shape(whole, (sum(shape[0] for shape in shapes), shapes[0][-1]))
        self.used.add(whole.name)
        pieces = [Piece(part, self._dimensions[size]) for part, size in stack.pieces]
        rows = rows_of_parts(pieces, self._dimensions[stack.groups])
        return {
            wanted.fill(part): with_rows(whole, own, part.rpartition(".")[0].rpartition(".")[2])
            for part, own in zip(stack.parts, rows, strict=True)
        }

    def _arranged(
        self,
        stack: StackRule,
        arrangement: Arrangement,
        whole: SourceTensor,
        wanted: _ExpectedTensor,
    ) -> dict[str, SourceTensor]:
        """Return the parts of a stack by their names."""
        is_per_expert = self._rows[stack.parts[0]].is_per_expert
        experts = self._dimensions["experts"] if is_per_expert else None
        names = [
            part.format(layer=wanted.layer, expert=number)
            for number in range(experts or 1)
            for part in stack.parts
        ]
        shapes = [self._shape(self._rows[part], wanted.layer) for part in stack.parts]
        matrices = [(prod(shape[:-1]), shape[-1]) for shape in shapes]
        _check_shape(whole, stacked_shape(arrangement, matrices, experts))
        self.used.add(whole.name)
        parts = take_apart(whole, matrices, arrangement, experts or 1)
        return dict(zip(names, parts, strict=True))


def _is_required(rule: TensorRule, config: Config) -> bool:
    return rule.required(config) if callable(rule.required) else rule.required


def _check_shape(tensor: SourceTensor, expected: tuple[int, ...]) -> None:
    if tensor.shape != expected:
        raise SourceError(
            "wrong shape",
            where=f"{tensor.file}, tensor {tensor.name}",
            expected=list(expected),
            found=list(tensor.shape),
            hint="config.json and the weights do not belong together",
        )


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
