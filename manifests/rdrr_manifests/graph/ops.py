"""The ops of the graph, as data.

Values are named by strings and each is written once, except that every layer of the residual
stream gets a name of its own. All values are matrices with one row for each token. Ops say what
is computed; they do not say how.

An op is a frozen dataclass and a member of the union `Op`, the only list of ops in this component:
what an op reads follows from the types of its fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Annotated, get_args, get_type_hints

GRAPH_VERSION = 2

Value = Annotated[str, "value"]
"""The name of a value that an op reads; the one that it writes is the plain string `out`."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one kind of layer.

    `rdrr_runtime.phases.rope_tables` makes its table of sines and cosines.

    Attributes:
        theta: Base of the frequencies.
        head_dim: Width of a head.
        rotary_dim: Leading elements of the head that are rotated, in rotate-half pairs.
        scaling: None, `linear`, `llama3`, `yarn` or `longrope`.
        factor: Scaling factor.
        low_freq_factor: Of llama3, as is `high_freq_factor`.
        beta_fast: Of yarn, as is `beta_slow`.
        original_max_pos: Context before scaling, for llama3, yarn and longrope.
        short_factor: Of longrope, one for each frequency, as is `long_factor`.
    """

    theta: float
    head_dim: int
    rotary_dim: int
    scaling: str | None = None
    factor: float = 1.0
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    original_max_pos: int | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None


class WeightKind(Enum):
    """How an op reads a tensor, which decides the form that a runtime keeps it in."""

    VECTOR = "vector"
    """Element by element, as the gains of a norm."""
    TABLE = "table"
    """Some rows of it, as an embedding."""
    MATRIX = "matrix"
    """Multiplied by whole rows of values."""
    EXPERT = "expert"
    """As `MATRIX`, for the rows that a router sends to it."""


@dataclass(frozen=True)
class WeightUse:
    """A tensor that an op reads, the logical shape it must have, and how it is read."""

    name: str
    shape: tuple[int, ...]
    kind: WeightKind = WeightKind.MATRIX


@dataclass(frozen=True)
class Embed:
    """out[r] = weight[token[r]] * scale."""

    out: str
    weight: WeightUse
    scale: float


@dataclass(frozen=True)
class Norm:
    """RMSNorm over runs of `width`: out = x / sqrt(mean(x^2) + eps) * (w, or 1 + w).

    `groups` runs lie side by side in a row: 1 for the hidden state, the number of heads for
    the norm of queries or keys.
    """

    x: Value
    out: str
    weight: WeightUse
    eps: float
    unit_offset: bool
    groups: int = 1

    @property
    def width(self) -> int:
        """Elements that share one mean."""
        return self.weight.shape[0]


@dataclass(frozen=True)
class Linear:
    """out = x W^T (+ bias); the weight's shape is [out_features, in_features]."""

    x: Value
    out: str
    weight: WeightUse
    bias: WeightUse | None = None


@dataclass(frozen=True)
class Rope:
    """Rotate each of `heads` heads of x by the token's position, with `Graph.ropes[table]`."""

    x: Value
    out: str
    heads: int
    table: int


@dataclass(frozen=True)
class Attention:
    """Causal attention over the cache of `layer`; this layer's k and v join the cache first.

    Attributes:
        scale: Factor on q.k.
        window: A token sees itself and the window-1 tokens before it; None for all before it.
        softcap: Scores become softcap*tanh(score/softcap).
    """

    q: Value
    k: Value
    v: Value
    out: str
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True)
class GatedActivation:
    """out = activation(gate) * up; with `up` None, x holds gate and up side by side."""

    gate: Value
    up: Value | None
    out: str
    activation: str
    width: int


@dataclass(frozen=True)
class Router:
    """Which experts serve each row, and how much each counts.

    out holds `top_k` pairs of expert and weight for each row: softmax over all experts of
    x W^T, in float32 at least; its `top_k` largest, the larger first and ties to the lower expert;
    with `normalize` divided by their sum.

    Attributes:
        weight: [experts, features of x].
        top_k: Experts of a row.
        normalize: The weights of a row sum to one.
    """

    x: Value
    out: str
    weight: WeightUse
    top_k: int
    normalize: bool

    @property
    def experts(self) -> int:
        """Experts to choose from."""
        return self.weight.shape[0]


@dataclass(frozen=True)
class Experts:
    """out = sum of weight * down(activation(gate(x)) * up(x)) over the experts of each row.

    Attributes:
        router: The value of the `Router` that says which experts and weights.
        gates: One matrix for each expert, [width, features of x]; so are `ups`.
        downs: One matrix for each expert, [features of x, width].
        activation: As in `GatedActivation`.
        width: Of an expert's inner layer.
    """

    x: Value
    router: Value
    out: str
    gates: tuple[WeightUse, ...]
    ups: tuple[WeightUse, ...]
    downs: tuple[WeightUse, ...]
    activation: str
    width: int


@dataclass(frozen=True)
class SigmoidGate:
    """out = branch * sigmoid(x w), one factor for each row; the weight's shape is [1, features]."""

    x: Value
    branch: Value
    out: str
    weight: WeightUse


@dataclass(frozen=True)
class Residual:
    """out = x + branch * scale."""

    x: Value
    branch: Value
    out: str
    scale: float = 1.0


@dataclass(frozen=True)
class Head:
    """Logits: out = cap(scale * x W^T); the weight may be the embedding."""

    x: Value
    out: str
    weight: WeightUse
    scale: float = 1.0
    softcap: float | None = None


Op = (
    Embed
    | Norm
    | Linear
    | Rope
    | Attention
    | GatedActivation
    | Router
    | Experts
    | SigmoidGate
    | Residual
    | Head
)


def values_read(op: Op) -> tuple[str, ...]:
    """Return the values that an op reads, in the order of its fields."""
    kind: type = type(op)
    found = (getattr(op, name) for name in _operands(kind))
    return tuple(value for value in found if value is not None)


@cache
def _operands(kind: type) -> tuple[str, ...]:
    """Return the fields of an op that name a value, or may name one."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if Value in (hint, *get_args(hint)))


def uses(op: Op) -> tuple[WeightUse, ...]:
    """Return the tensors that an op reads; of experts, one expert after the other."""
    held = [getattr(op, one.name) for one in fields(op)]
    single = (one for one in held if isinstance(one, WeightUse))
    stacks = (one for one in held if isinstance(one, tuple))
    return (*single, *(use for one_of_each in zip(*stacks, strict=True) for use in one_of_each))


@dataclass(frozen=True)
class Graph:
    """The whole model.

    Attributes:
        ops: In order of execution; the first is `Embed`, the last is `Head`.
        ropes: Tables that `Rope.table` counts into.
        layers: Decoder layers, which is also the number of key-value caches.
        hidden_size: Width of the residual stream.
        kv_heads: Key-value heads of a layer.
        head_dim: Width of a head.
        vocab_size: Logits of a token.
        context: Longest context the model was made for, in tokens.
    """

    ops: tuple[Op, ...]
    ropes: tuple[RopeSpec, ...]
    layers: int
    hidden_size: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context: int
    version: int = field(default=GRAPH_VERSION)

    def weights(self) -> tuple[WeightUse, ...]:
        """Every tensor that the graph reads, in order of first use, each once."""
        found: dict[str, WeightUse] = {}
        for op in self.ops:
            for use in uses(op):
                found.setdefault(use.name, use)
        return tuple(found.values())

    def weight_kinds(self) -> dict[str, frozenset[WeightKind]]:
        """Return how each tensor is read, which for a tied embedding is in two ways."""
        found: dict[str, frozenset[WeightKind]] = {}
        for op in self.ops:
            for use in uses(op):
                found[use.name] = found.get(use.name, frozenset()) | {use.kind}
        return found

    def kv_bytes(self, tokens: int, bytes_per_element: int) -> int:
        """Bytes of the key-value cache for a context of `tokens`."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * bytes_per_element
