"""The data structures in which an architecture file describes an architecture.

An architecture is one constant: which checkpoints it applies to, what its configuration keys mean
and which tensors it has. It contains no code that converts or computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import read_rope
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import all_full

Rule = Callable[[Config], object]
"""A function that reads one field of a typed block from the configuration."""

Keys = dict[str, Any]
"""Content of a `config.json` that is being built."""

Block = Mapping[str, object]
"""Fields of a typed block by Python name, each a `Rule` or a constant."""


@dataclass(frozen=True)
class TensorRule:
    """A tensor of the architecture: one in the model, one per layer or one per expert.

    Attributes:
        name: Canonical (Hugging Face) name; `{layer}` and `{expert}` stand for their indices.
        role: Role in the manifest.
        shape: Names of dimensions: vocab, hidden, inner (intermediate size), q and kv (heads times
            head dimension), head (head dimension), heads (number of query heads), experts (their
            number), width (intermediate size of an expert), shared (that of the shared expert),
            one (1).
        required: Whether the checkpoint must have the tensor, or a rule that reads this from the
            configuration. A tensor that exists is used in any case. An export writes the key of a
            `Flag`; for a tensor that is never required, no configuration can say that it exists.
        layers: A rule for the indices of the layers that have the tensor; None for all layers.
        aliases: Other names that checkpoints use for the tensor.
    """

    name: str
    role: str
    shape: tuple[str, ...]
    required: bool | Callable[[Config], bool] = True
    layers: Callable[[Config], Collection[int]] | None = None
    aliases: tuple[str, ...] = ()

    @property
    def is_per_layer(self) -> bool:
        """Whether there is one per layer."""
        return "{layer}" in self.name

    @property
    def is_per_expert(self) -> bool:
        """Whether there is one per expert."""
        return "{expert}" in self.name


@dataclass(frozen=True)
class Arrangement:
    """How the parts of a stack are arranged where their rows do not follow each other.

    Attributes:
        alternating: Whether the rows of the parts alternate.
        transposed: Whether an expert's matrices are stored transposed, [inputs, rows of all parts].
        columns: Whether the parts are concatenated along their columns instead, like biases that
            have a row for each expert.
        written: Whether an exported checkpoint has the stack, because readers of the architecture
            accept nothing else.
        or_plain: Whether a checkpoint may have the stack without this arrangement, which its shape
            then tells.
    """

    alternating: bool = False
    transposed: bool = False
    columns: bool = False
    written: bool = False
    or_plain: bool = False


@dataclass(frozen=True)
class StackRule:
    """Tensors of a layer that a checkpoint may store as one tensor, concatenated along the rows.

    Attributes:
        name: Name of the stacked tensor; `{layer}` stands for the index of the layer.
        parts: Names of the `TensorRule`s of its parts, from the top down. If they contain
            `{expert}`, all parts of the first expert come first, then those of the next.
        by_head: Whether the parts alternate: for each key-value head first its rows of the first
            part, then those of the next.
        transposed: Whether a matrix is stored as [inputs, outputs].
        is_published: Whether checkpoints of transformers have it; others are only in GGUF files.
        arrangement: Another arrangement of the parts; None if their rows follow each other.
        groups: Dimension that says how many groups of rows there are, if each has `pieces`.
        pieces: For each piece of a group, the index of its part and the dimension that is its
            number of rows.
    """

    name: str
    parts: tuple[str, ...]
    by_head: bool = False
    transposed: bool = False
    is_published: bool = True
    arrangement: Arrangement | None = None
    groups: str = ""
    pieces: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class HeadLayer:
    """A linear layer of a head, an activation, and a LayerNorm if it has one.

    Attributes:
        module: Name of the layer in checkpoints.
        activation: The manifest's name of the activation, or a rule for it.
        norm: Name of the norm after the activation; empty for none.
        bias: Name of a bias that is not named after the layer; empty for the usual name.
        is_tied: Whether the weight is the embedding of the tokens if the checkpoint has none.
    """

    module: str
    activation: Rule | str = "identity"
    norm: str = ""
    bias: str = ""
    is_tied: bool = False


@dataclass(frozen=True)
class HeadRule:
    """What classes with one ending have in place of an output head.

    Attributes:
        ending: End of the names of the classes.
        pooling: What the first layer reads: `cls`, `last`, `mean`, or `none` for each token; or a
            rule for it.
        layers: The layers, in order.
        labels: Whether the last layer has a row for each label, rather than for each token.
    """

    ending: str
    pooling: Rule | str
    layers: tuple[HeadLayer, ...]
    labels: bool = True


SEQUENCE, TOKEN, MASKED = "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"
"""How the names of classes end that classify texts or tokens, or fill in masks."""

_SCORE = (HeadLayer("score"),)
SCORES = (HeadRule(SEQUENCE, "last", _SCORE), HeadRule(TOKEN, "none", _SCORE))
"""The heads of language models in transformers."""


ATTENTION: Block = MappingProxyType({"query_pre_attn_scalar": read.head_dim})
WINDOWED_ATTENTION: Block = MappingProxyType(
    {**ATTENTION, "sliding_window": read.window("sliding_window")}
)
STATED_WINDOW: Block = MappingProxyType(
    {**ATTENTION, "sliding_window": read.optional_integer("sliding_window")}
)
RMS_NORMS: Block = MappingProxyType(
    {"rms_norm_eps": read.number("rms_norm_eps"), "post_attention_norm": True}
)
FEED_FORWARD: Block = MappingProxyType({"activation": read.activation("hidden_act")})
"""Fields of the typed blocks of Llama, and of models of its form with a sliding window."""

BODY = "model."
"""Prefix of the canonical names of all tensors except the head."""

_INDEX = re.compile(r"(?<=\.layers\.)\d+(?=\.)")
_EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")


@dataclass(frozen=True)
class ArchitectureRule:
    """The description of an architecture: what of it differs from Llama.

    Attributes:
        name: Its `model_type`, which is also the name of its file.
        classes: Values of `architectures` in config.json.
        defaults: Values that transformers assumes for absent configuration keys.
        tensors: The tensors in storage order.
        attention: Fields of the block `inference.attention`.
        normalization: Fields of the block `inference.normalization`.
        ffn: Fields of the block `inference.ffn`.
        output: Fields of the block `inference.output`.
        layer_types: Rule for the type of each layer: `full_attention`, `sliding_attention`, or a
            type with a recurrent state.
        rope: Rule for the block `inference.rope`.
        branch_scale: Factor on the outputs of attention and feed-forward network before they are
            added to the residual stream.
        parallel: Whether attention and feed-forward both read the input of the layer.
        stacks: Tensors that a checkpoint may store as one.
        experts: Fields of the block `moeConfig`; None if the architecture has no experts.
        mask_token: Configuration key of the mask token's id, for models that fill in masked
            tokens.
        stated_by_tensors: Configuration keys that are not read, since the tensors say the same.
        model_types: Further values of `model_type` and of `--arch` for this architecture.
        text_type: `model_type` of the text model in transformers, where it is not the name.
        prefixes: Prefixes that checkpoints use in place of `body`.
        body: Prefix of the names of all tensors except the head, in checkpoints of transformers.
        names: Names of modules in checkpoints of transformers, by canonical name, where they
            differ; `{layer}` and `{expert}` stand for their indices. The name of a tensor may be
            replaced as a whole.
        names_in: Rule for further names of modules, where they depend on the configuration.
        keys: Names of configuration keys, by the usual names, where they differ; an empty name if
            configurations do not have the key.
        rows: Names in checkpoints of transformers of the rows of a tensor, by its canonical name,
            where each row is a tensor of its own; `{row}` stands for the index of the row.
        head_gates: Names of modules with one row for each head, by the module (both within a layer)
            that has in a package, for each head, its rows and then that row as many times.
        transposed: Canonical names of modules whose matrix checkpoints store as [inputs, outputs].
        dimensions: Further dimensions for the shapes of tensors, by name.
        ignored: Patterns of tensors that are not weights, since they are computed on loading.
        other_parts: Patterns of tensors that are not part of the text model.
        sizes: Further fields of the block `architecture`.
        layer_dimensions: Rule for dimensions that differ between layers, by the words of
            `TensorRule.shape`.
        inner: Rule for the intermediate size; None for the usual key.
        pattern: Further fields of the block `inference.layerPattern`.
        has_experts: Whether a model has the experts that `experts` describes.
        unused: Rule for patterns of tensors that checkpoints have and the model does not read.
        remarks: Rule for notes on what of the model a package leaves out.
        state_space: Fields of the block `inference.stateSpace`; None if no layer has one.
        extra_layers: Configuration key with the number of layers after the last one, which only
            predict further tokens (multi-token prediction). The first is the draft head if
            `has_draft_head`; all others are left out.
        exported: Returns the configuration of an export with the keys that follow from several
            fields or from tensors, given the configuration so far, the manifest and the names of
            the tensors. Keys with a `KeyRule` are written by themselves.
        row_tail: What is done with rows whose length is not a multiple of the block size, see
            `PackageOptions.k_tail`. Narrow models have many of them, and gain by the smaller type.
        heads: What classes have in place of an output head, by the end of their names.
        has_draft_head: Whether checkpoints may have a head for multi-token prediction of the form
            that `rdrr_converter.reading.draft_head` describes.
        tower: The vision tower that checkpoints may have, described like an architecture: its
            `sizes` are the fields of the block `vision`, and it has no other blocks.
        beside: For a tower: keys of its configuration that stand beside `vision_config`, as paths.
        row_order: Rules for the rows of stored matrices, or elements of vectors, in the order that
            the runtime needs, by canonical names; only for towers.
        joined: Names in checkpoints of the scalars that a tensor consists of, by canonical names;
            only for towers.
    """

    name: str
    classes: tuple[str, ...]
    defaults: Mapping[str, object]
    tensors: tuple[TensorRule, ...]
    attention: Block = field(default_factory=lambda: ATTENTION)
    normalization: Block = field(default_factory=lambda: RMS_NORMS)
    ffn: Block = field(default_factory=lambda: FEED_FORWARD)
    output: Block = field(default_factory=dict)
    layer_types: Callable[[Config], tuple[str, ...]] = all_full
    rope: Callable[[Config], Mapping[str, object]] = read_rope
    branch_scale: Callable[[Config], float] | float = 1.0
    parallel: Callable[[Config], bool] | bool = False
    stacks: tuple[StackRule, ...] = ()
    experts: Block | None = None
    mask_token: str | None = None
    stated_by_tensors: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    text_type: str = ""
    prefixes: tuple[str, ...] = (BODY, "")
    ignored: tuple[str, ...] = (
        r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$",
        r".*\.self_attn\.(bias|masked_bias)$",
    )
    other_parts: tuple[str, ...] = ()
    sizes: Block = field(default_factory=dict)
    extra_layers: str | None = None
    state_space: Block | None = None
    has_draft_head: bool = False
    body: str = BODY
    names: Mapping[str, str] = field(default_factory=dict)
    names_in: Callable[[Config], Mapping[str, str]] | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    head_gates: Mapping[str, str] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()
    dimensions: Mapping[str, Callable[[Config], int]] = field(default_factory=dict)
    layer_dimensions: Callable[[Config, int], Mapping[str, int]] | None = None
    inner: Callable[[Config], int] | None = None
    pattern: Block = field(default_factory=dict)
    has_experts: Callable[[Config], bool] | None = None
    unused: Callable[[Config], Collection[str]] | None = None
    remarks: Callable[[Config], tuple[str, ...]] = lambda _: ()
    exported: Callable[[Keys, Manifest, Collection[str]], Keys] = lambda config, *_: config
    row_tail: Literal["pad", "auto"] = "pad"
    heads: tuple[HeadRule, ...] = SCORES
    tower: ArchitectureRule | None = None
    beside: tuple[str, ...] = ()
    row_order: Mapping[str, Callable[[Config], list[int]]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def config(self, values: Mapping[str, Any], where: object) -> Config:
        """Return a configuration with the defaults and the key names of this architecture."""
        return Config(values, self.defaults, where, self.keys)

    def named_by(self, config: Config) -> ArchitectureRule:
        """Return this architecture with the names of modules of one configuration."""
        if self.names_in is None:
            return self
        return replace(self, names={**self.names, **self.names_in(config)}, names_in=None)

    def published_name(self, name: str) -> str:
        """Return the name of a tensor in checkpoints of transformers, given the canonical one.

        The indices of the layer and of the expert may be numbers or `{layer}` and `{expert}`,
        which are kept.
        """
        layer, expert = _INDEX.search(name), _EXPERT.search(name)
        form = _EXPERT.sub("{expert}", _INDEX.sub("{layer}", name))
        stem, _, ending = form.rpartition(".")
        if form in self.names:
            published = self.names[form]
        elif stem in self.names:
            published = f"{self.names[stem]}.{ending}"
        else:
            return name
        published = published.replace("{layer}", layer[0]) if layer else published
        return published.replace("{expert}", expert[0]) if expert else published

    def head_gate(self, name: str) -> str | None:
        """Return the name in checkpoints of the gates that a matrix has for each head, if any."""
        for module, gates in self.head_gates.items():
            if name.endswith(f".{module}.weight"):
                return name.replace(f".{module}.", f".{gates}.")
        return None

    def row_names(self, name: str, count: int) -> tuple[str, ...]:
        """Return the names of the rows of a tensor in checkpoints; empty if it is one tensor.

        Args:
            name: Canonical name, with the index of the layer or with `{layer}`, which is kept.
            count: Number of rows.
        """
        index = _INDEX.search(name)
        template = self.rows.get(_INDEX.sub("{layer}", name))
        if template is None:
            return ()
        layer = index[0] if index else "{layer}"
        return tuple(template.format(layer=layer, row=row) for row in range(count))

    def is_stored_transposed(self, name: str) -> bool:
        """Return whether a tensor of this name in a checkpoint is stored as [inputs, outputs].

        Args:
            name: Name in a checkpoint of transformers, with any of the prefixes.
        """
        matrices = (self.published_name(f"{matrix}.weight") for matrix in self.transposed)
        stacks = (stack.name for stack in self.stacks if stack.transposed)
        transposed = {tensor.removeprefix(self.body) for tensor in (*matrices, *stacks)}
        plain = re.sub(r"(?<=\.)\d+(?=\.)", "{layer}", f".{name}")[1:]
        return any(plain.removeprefix(prefix) in transposed for prefix in self.prefixes)

    def is_transposed(self, name: str) -> bool:
        """Return whether checkpoints of transformers store a tensor as [inputs, outputs]."""
        stem, _, ending = _INDEX.sub("{layer}", name).rpartition(".")
        return ending == "weight" and stem in self.transposed


def read_block(block: Block, config: Config) -> dict[str, object]:
    """Evaluate the fields of a typed block for a configuration."""
    return {key: rule(config) if callable(rule) else rule for key, rule in block.items()}
