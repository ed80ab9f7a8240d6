"""The ops of the graph, as data.

Values are named by strings, and each name is written by exactly one op; the residual stream has a
new name after each addition. All values are matrices with one row for each token. An op states what
is computed, not how.

An op is a frozen dataclass and a member of the union `Op`, which is the only list of ops in this
component. The values and tensors that an op reads follow from the types of its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from math import prod
from types import MappingProxyType
from typing import get_args, get_type_hints

from rdrr_manifests.graph.attention_ops import Attention, LatentAttention
from rdrr_manifests.graph.expert_ops import Experts, Router
from rdrr_manifests.graph.row_ops import (
    Activation,
    Clamp,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Norm,
    PositionEmbed,
    PositionScale,
    Residual,
    Rope,
    Scale,
    SigmoidGate,
    Slice,
    Sparsify,
)
from rdrr_manifests.graph.state_ops import ChannelFactors, DeltaRule, ShortConvolution, StateSpace
from rdrr_manifests.graph.stream_ops import (
    AppendStream,
    CombineStreams,
    StreamCoefficients,
)
from rdrr_manifests.graph.weights import RopeSpec, Value, WeightKind, WeightUse

__all__ = [
    "GRAPH_VERSION",
    "Activation",
    "AppendStream",
    "Attention",
    "CacheShape",
    "ChannelFactors",
    "Clamp",
    "CombineStreams",
    "Concat",
    "DeltaRule",
    "Embed",
    "Experts",
    "GatedActivation",
    "Graph",
    "Head",
    "LatentAttention",
    "Linear",
    "Norm",
    "Op",
    "PositionEmbed",
    "PositionScale",
    "Recall",
    "Residual",
    "Rope",
    "RopeSpec",
    "Router",
    "Scale",
    "ShortConvolution",
    "SigmoidGate",
    "Slice",
    "Sparsify",
    "StateSpace",
    "Stateful",
    "StreamCoefficients",
    "WeightKind",
    "WeightUse",
    "uses",
    "values_read",
]


GRAPH_VERSION = 2


@dataclass(frozen=True)
class Recall:
    """out[r] = the kept hidden state of the token in the slot of row r, after the final norm.

    A draft head reads what another graph has computed for the same tokens, see `mtp`. The states
    are kept for a limited number of slots, the latest ones.

    Attributes:
        width: Elements of a hidden state.
    """

    out: str
    width: int


@dataclass(frozen=True)
class Concat:
    """out = [x, y]: the elements of x, then those of y."""

    x: Value
    y: Value
    out: str


Op = (
    Embed
    | Recall
    | PositionEmbed
    | Norm
    | Linear
    | Rope
    | PositionScale
    | Attention
    | LatentAttention
    | GatedActivation
    | Activation
    | Router
    | Experts
    | SigmoidGate
    | Slice
    | Concat
    | ShortConvolution
    | DeltaRule
    | StateSpace
    | Residual
    | Scale
    | Sparsify
    | AppendStream
    | StreamCoefficients
    | CombineStreams
    | Head
)


Stateful = ShortConvolution | DeltaRule | StateSpace
"""The ops that have a recurrent state."""


def values_read(op: Op) -> tuple[str, ...]:
    """Return the names of the values that an op reads, in the order of its fields."""
    kind: type = type(op)
    operands = (getattr(op, name) for name in _operands(kind))
    return tuple(value for value in operands if value is not None)


@cache
def _operands(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of an op type that hold the name of a value, or None."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if Value in (hint, *get_args(hint)))


def uses(op: Op) -> tuple[WeightUse, ...]:
    """Return the tensors that an op reads; those of experts are ordered by expert."""
    held = [getattr(op, entry.name) for entry in fields(op)]
    single = (value for value in held if isinstance(value, WeightUse))
    stacks = (value for value in held if isinstance(value, tuple) and value)  # gates may be absent
    return (*single, *(use for one_of_each in zip(*stacks, strict=True) for use in one_of_each))


@dataclass(frozen=True)
class CacheShape:
    """Sizes of the keys, and of the values, of a layer.

    Attributes:
        kv_heads: Key-value heads; 1 in the cache of latents, whose two parts are the latent and the
            rotated key.
        head_dim: Width of a head.
        second_dim: Width of a head of the second part; None if it is that of the first.
    """

    kv_heads: int
    head_dim: int
    second_dim: int | None = None

    @property
    def widths(self) -> tuple[int, int]:
        """Widths of a head of the two parts."""
        return self.head_dim, self.head_dim if self.second_dim is None else self.second_dim

    @property
    def elements(self) -> int:
        """Elements of the keys and values of one token."""
        return self.kv_heads * sum(self.widths)

    def holds_blocks(self, size: int) -> bool:
        """Return whether heads consist of whole blocks, or of pairs of them where they differ."""
        step = size if self.second_dim is None else 2 * size
        return all(width % step == 0 for width in self.widths)


def _cache_shape(op: Attention | LatentAttention) -> CacheShape | None:
    """Return the shape of the cache that an op adds to; None if it only reads one."""
    if isinstance(op, LatentAttention):
        return CacheShape(1, op.latent, op.rope_dim)
    return None if op.k is None else CacheShape(op.kv_heads, op.head_dim)


@dataclass(frozen=True)
class Graph:
    """The graph of a whole model.

    Attributes:
        ops: Ops in order of execution; the first is `Embed`, the last is `Head`.
        ropes: The rotary embeddings; `Rope.table` is an index into them.
        layers: Decoder layers.
        hidden_size: Width of the residual stream.
        vocab_size: Number of logits of a token.
        context: Longest context that the model was trained for, in tokens.
        version: Version of the set of ops.
    """

    ops: tuple[Op, ...]
    ropes: tuple[RopeSpec, ...]
    layers: int
    hidden_size: int
    vocab_size: int
    context: int
    version: int = field(default=GRAPH_VERSION)

    def weights(self) -> tuple[WeightUse, ...]:
        """Return every tensor that the graph reads, once each, in order of first use."""
        weights: dict[str, WeightUse] = {}
        for op in self.ops:
            for use in uses(op):
                weights.setdefault(use.name, use)
        return tuple(weights.values())

    def weight_kinds(self) -> dict[str, frozenset[WeightKind]]:
        """Return how each tensor is read, by name; a tied embedding is read in two ways."""
        kinds: dict[str, frozenset[WeightKind]] = {}
        for op in self.ops:
            for use in uses(op):
                kinds[use.name] = kinds.get(use.name, frozenset()) | {use.kind}
        return kinds

    @cached_property
    def caches(self) -> Mapping[int, CacheShape]:
        """The shapes of the key-value caches, by the layer that owns them."""
        return MappingProxyType(
            {
                op.layer: shape
                for op in self.ops
                if isinstance(op, Attention | LatentAttention) and (shape := _cache_shape(op))
            }
        )

    @property
    def output_size(self) -> int:
        """Width of the hidden states that the head reads."""
        head = self.ops[-1]
        assert isinstance(head, Head), "the last op is the head"
        return head.weight.shape[-1]

    def values_of_images(self, taps: int) -> tuple[str, ...]:
        """Return the values whose rows of images come from a vision tower.

        The rows of the first one, the embedding, are replaced; features are added to those of the
        others, the outputs of the first layers.

        Args:
            taps: Number of layers.
        """
        outs = [op.out for op in self.ops]
        of_layers = ([out for out in outs if out.startswith(f"l{at}.")] for at in range(taps))
        return (outs[0], *(layer[-1] for layer in of_layers))

    @cached_property
    def further_tables(self) -> tuple[Embed, ...]:
        """The ops that look up a second table by token, such as the inputs of each layer."""
        return tuple(op for op in self.ops[1:] if isinstance(op, Embed))

    @cached_property
    def is_causal(self) -> bool:
        """Whether no token attends to later ones, so that a text can run in several passes."""
        return all(op.causal for op in self.ops if isinstance(op, Attention))

    @cached_property
    def states(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the recurrent states of one sequence; an op names its own by its index."""
        holders = [op for op in self.ops if isinstance(op, Stateful)]
        assert [op.state for op in holders] == list(range(len(holders))), "states are in order"
        return tuple(op.state_shape for op in holders)

    def state_bytes(self) -> int:
        """Return the bytes of the states of one sequence, which are f32 whatever the context."""
        return sum(4 * prod(shape) for shape in self.states)

    def kv_bytes(self, tokens: int, bytes_per_element: int) -> int:
        """Return the bytes of the key-value cache for a context of `tokens` tokens."""
        elements = sum(cache.elements for cache in self.caches.values())
        return elements * tokens * bytes_per_element
