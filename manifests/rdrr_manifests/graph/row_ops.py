"""The ops that compute each token row by itself: embeddings, norms, products, activations."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.weights import Value, WeightUse


@dataclass(frozen=True)
class Embed:
    """out[r] = weight[token[r]] * scale; a token beyond the table reads row 0."""

    out: str
    weight: WeightUse
    scale: float


@dataclass(frozen=True)
class PositionEmbed:
    """out[r] = x[r] + weight[offset + position[r]]: a learned embedding of the token's position.

    Attributes:
        weight: [offset + longest context, features of x], or [types, features of x].
        offset: Row of position 0, or of type 0.
        by_type: Whether the row is that of the token's type instead of its position.
    """

    x: Value
    out: str
    weight: WeightUse
    offset: int
    by_type: bool = False


@dataclass(frozen=True)
class Norm:
    """RMSNorm or LayerNorm over groups of elements: out = (x - m) / sqrt(s + eps) * w + b.

    For RMSNorm m is 0, for LayerNorm the mean of the group; s is the mean of (x - m)^2. A row
    consists of `groups` groups: 1 for the hidden state, the number of heads for the norm of queries
    or keys.

    Attributes:
        weight: [width], or [groups, width] if each group has its own; None for a factor of 1. With
            `elements` it may also be [groups * elements].
        eps: Epsilon added to s.
        unit_offset: Whether the factor is 1 + w.
        groups: Groups of a row.
        centred: Whether it is LayerNorm.
        bias: Of the shape of the weight; None for 0.
        elements: Elements of a group; None if the last dimension of the weight says it.
    """

    x: Value
    out: str
    weight: WeightUse | None
    eps: float
    unit_offset: bool
    groups: int = 1
    centred: bool = False
    bias: WeightUse | None = None
    elements: int | None = None

    @property
    def width(self) -> int:
        """Elements of a group, which share one mean."""
        if self.elements is not None:
            return self.elements
        return self.weight.shape[-1] if self.weight is not None else 0

    @property
    def is_plain(self) -> bool:
        """Whether it is RMSNorm with one weight for all groups, which kernels can fuse."""
        has_one = self.weight is not None and self.weight.shape == (self.width,)
        return has_one and not self.centred and self.bias is None


@dataclass(frozen=True)
class Linear:
    """out = x W^T (+ bias); the weight's shape is [out_features, in_features]."""

    x: Value
    out: str
    weight: WeightUse
    bias: WeightUse | None = None


@dataclass(frozen=True)
class Rope:
    """Rotate each of `heads` heads of x by the token's position, with `Graph.ropes[table]`.

    Elements i and i + pairs of a head form a pair, or 2i and 2i + 1 if `interleaved`, where `pairs`
    is half of the rotated elements.
    """

    x: Value
    out: str
    heads: int
    table: int
    interleaved: bool = False


@dataclass(frozen=True)
class PositionScale:
    """out = x * (1 + scale * ln(1 + floor((p + offset) / length))) for the position p of each row.

    Queries scaled in this way keep their attention sharp in contexts longer than `length`.

    Attributes:
        scale: Factor on the logarithm.
        length: Positions that share one factor.
        offset: Added to the position.
    """

    x: Value
    out: str
    scale: float
    length: int
    offset: int = 0


@dataclass(frozen=True)
class Clamp:
    """Clamped SwiGLU: activation(g) * u is g' / (1 + exp(-alpha g')) * (u' + up_offset) instead.

    g' is g where it is below `limit`, else `limit`. u' is u, limited to the range from -`limit` to
    `limit`. The activation must be `silu`.

    Attributes:
        limit: Largest gate, and largest magnitude of up.
        alpha: Factor on the gate within the sigmoid.
        up_offset: Added to up after it was limited.
    """

    limit: float
    alpha: float = 1.0
    up_offset: float = 0.0


@dataclass(frozen=True)
class GatedActivation:
    """out = activation(gate * gate_scale) * up; if `up` is None, a row of `gate` is gate, then up.

    Attributes:
        activation: `silu` or `gelu_tanh`.
        width: Elements of a row of `out`.
        clamp: Changes the formula to that of `Clamp`; None for the usual one.
        up_parts: Parts of `width` elements that a row of `up` consists of.
        up_part: The part of `up` that is read.
        gate_scale: Factor on the gate before the activation.
    """

    gate: Value
    up: Value | None
    out: str
    activation: str
    width: int
    clamp: Clamp | None = None
    up_parts: int = 1
    up_part: int = 0
    gate_scale: float = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether it reads whole rows of `up` and has no factor on the gate."""
        return self.up_parts == 1 and self.gate_scale == 1.0


@dataclass(frozen=True)
class Activation:
    """out = activation(x), for a feed-forward without a gate, and for projections with a limit.

    Attributes:
        activation: Name of the activation; `clip` is min(max(x, -limit), limit).
        width: Elements of a row.
        parameters: Four numbers of `xielu`, each a tensor with one element: alpha_p and alpha_n
            before softplus, beta and eps. Other activations have none.
        limit: Largest absolute value of `clip`; None for other activations.
    """

    x: Value
    out: str
    activation: str
    width: int
    parameters: tuple[WeightUse, ...] = ()
    limit: float | None = None


@dataclass(frozen=True)
class SigmoidGate:
    """out = branch * sigmoid(x w), one factor for each row; the weight's shape is [1, features]."""

    x: Value
    branch: Value
    out: str
    weight: WeightUse


@dataclass(frozen=True)
class Slice:
    """A part of each of `groups` equal parts of a row: columns `first` to `first + width` of each.

    Attributes:
        groups: Number of parts that a row of x consists of.
        size: Elements of each part in x.
        first: First column that is taken.
        width: Columns that are taken.
    """

    x: Value
    out: str
    groups: int
    size: int
    first: int
    width: int


@dataclass(frozen=True)
class Residual:
    """out = x + branch * scale."""

    x: Value
    branch: Value
    out: str
    scale: float = 1.0


@dataclass(frozen=True)
class Scale:
    """out = factor * weight * x + bias.

    Attributes:
        weight: Of a row's elements, or one for all of them; None for 1.
        bias: Of a row's elements; None for 0.
    """

    x: Value
    out: str
    factor: float = 1.0
    weight: WeightUse | None = None
    bias: WeightUse | None = None


@dataclass(frozen=True)
class Sparsify:
    """out = max(x - (mean + multiplier * deviation), 0), over the elements of a row.

    The deviation is the standard deviation of the row, sqrt(mean((x - mean)^2)).
    """

    x: Value
    out: str
    multiplier: float


@dataclass(frozen=True)
class Head:
    """Logits: out = cap(scale * (x W^T + bias)) with cap(y) = softcap * tanh(y / softcap).

    There is no cap if `softcap` is None. The weight may be the embedding.
    """

    x: Value
    out: str
    weight: WeightUse
    scale: float = 1.0
    softcap: float | None = None
    bias: WeightUse | None = None
