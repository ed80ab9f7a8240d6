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
from enum import Enum
from functools import cache, cached_property
from math import prod
from types import MappingProxyType
from typing import Annotated, get_args, get_type_hints

GRAPH_VERSION = 2

Value = Annotated[str, "value"]
"""The name of a value that an op reads; the one that it writes is the plain string `out`."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one kind of layer.

    `rdrr_runtime.phases.rope_tables` computes the table of cosines and sines.

    Attributes:
        theta: Base of the frequencies.
        head_dim: Width of a head.
        rotary_dim: Leading elements of the head that are rotated.
        scaling: None, `linear`, `llama3`, `yarn` or `longrope`.
        factor: Scaling factor.
        low_freq_factor: `low_freq_factor` of llama3 scaling.
        high_freq_factor: `high_freq_factor` of llama3 scaling.
        beta_fast: `beta_fast` of yarn scaling.
        beta_slow: `beta_slow` of yarn scaling.
        truncate: For yarn: whether the ends of the ramp are rounded to whole pairs.
        original_max_pos: Context length before scaling, for llama3, yarn and longrope.
        short_factor: Factors of longrope for short contexts, one for each frequency.
        long_factor: Factors of longrope for long contexts, one for each frequency.
        rotated_pairs: Leading pairs that are rotated; the others have the angle 0. None for all.
        attention_factor: Factor of yarn on cosines and sines; None for the one of the paper.
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
    truncate: bool = True
    original_max_pos: int | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    rotated_pairs: int | None = None
    attention_factor: float | None = None


class WeightKind(Enum):
    """How an op reads a tensor; the runtime chooses the tensor's form in memory by it."""

    VECTOR = "vector"
    """Element by element, like the weight of a norm."""
    TABLE = "table"
    """Row by row, like an embedding."""
    MATRIX = "matrix"
    """As the matrix of a product with all rows of a value."""
    EXPERT = "expert"
    """As the matrix of a product with the rows that a router sends to it."""


@dataclass(frozen=True)
class WeightUse:
    """A tensor that an op reads: its name, the logical shape it must have, and how it is read."""

    name: str
    shape: tuple[int, ...]
    kind: WeightKind = WeightKind.MATRIX


@dataclass(frozen=True)
class Embed:
    """out[r] = weight[token[r]] * scale; a token beyond the table reads row 0."""

    out: str
    weight: WeightUse
    scale: float


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
class PositionEmbed:
    """out[r] = x[r] + weight[offset + position[r]]: a learned embedding of the token's position.

    Attributes:
        weight: [offset + longest context, features of x].
        offset: Row of position 0.
    """

    x: Value
    out: str
    weight: WeightUse
    offset: int


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
class Attention:
    """Attention over the key-value cache of `layer`, to which k and v are added first.

    Attributes:
        k: New keys; None if an earlier op of the pass has added those of its own layer to the
            cache, and this op only reads them.
        v: New values, likewise.
        layer: Layer that owns the cache.
        scale: Factor on the scores q.k.
        window: Tokens that a token attends to, including itself; None for all up to itself.
        softcap: Scores become softcap*tanh(score/softcap); None for no cap.
        chunk: Length of the chunks that the context is cut into; a token attends only to its own.
            None for none.
        sinks: A logit for each head, [heads], that only enlarges the denominator of the softmax;
            None for none (Xiao et al. 2023, arXiv 2309.17453, with a learned logit).
        causal: Whether a token attends only to itself and earlier tokens. If not, it also attends
            to the later tokens of its pass, and window and chunk limit it on both sides: with a
            window, the distance of two tokens is less than `window`.
    """

    q: Value
    k: Value | None
    v: Value | None
    out: str
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: WeightUse | None = None
    chunk: int | None = None
    causal: bool = True


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
class LatentAttention:
    """Causal attention whose keys and values are made of one compressed latent of each token (MLA).

    A row of kv is a latent c, of which the norm is taken, and a key k_r that all heads share. With
    the matrices U (`key_dim` rows) and V (`value_dim` rows) of a head, in `up`:

        key(token) = [U c, rotated k_r]   value(token) = V c   query = [q_1, rotated q_2]

    The cache of `layer` holds c and the rotated k_r. Source: DeepSeek-AI 2024, arXiv 2405.04434,
    section 2.1.

    Attributes:
        q: Queries, [heads * (key_dim + rope_dim)].
        kv: Latent and shared key of the new token, [latent + rope_dim].
        norm: Weight of the RMSNorm of the latent, [latent].
        up: U and V of each head, one head after the other, [heads * (key_dim + value_dim), latent].
        layer: Layer that owns the cache.
        key_dim: Elements of a head's key that are made of the latent.
        rope_dim: Elements of a head's key that are rotated and shared by all heads.
        value_dim: Elements of a head's value.
        table: Index into `Graph.ropes`, whose head is the rotated part.
        interleaved: Which elements form a rotated pair, see `Rope`.
        eps: Epsilon of the norm.
        scale: Factor on the scores q.k.
    """

    q: Value
    kv: Value
    out: str
    norm: WeightUse
    up: WeightUse
    layer: int
    heads: int
    key_dim: int
    rope_dim: int
    value_dim: int
    table: int
    interleaved: bool
    eps: float
    scale: float

    @property
    def latent(self) -> int:
        """Elements of the latent."""
        return self.norm.shape[0]


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
class Router:
    """The experts of each row and their routing weights.

    out holds `top_k` pairs of expert and routing weight for each row, computed at least in float32:

        score(e)   softmax(x W^T + bias)[e] or sigmoid(x W^T + bias)[e], as `scoring` says
        choice(e)  score(e) + selection_bias[e], only in the `top_groups` best groups
        weight(e)  score(e), with `normalize` divided by their sum over the selected, times `scale`
                   and expert_scale[e]

    The `top_k` experts of largest choice are selected, in falling order, ties to the lower expert.
    With `normalize`, a softmax over all experts gives the same as one over the selected ones.

    Attributes:
        weight: [experts, features of x].
        top_k: Experts selected for each row.
        normalize: Whether the routing weights of a row are divided by their sum.
        bias: Added to the logits, [experts].
        scoring: `softmax` or `sigmoid`.
        selection_bias: Added to the scores for the selection only, [experts].
        groups: Groups of consecutive experts, of equal size.
        top_groups: Groups of which experts may be selected, those of the largest group score.
        group_score: `max`, the largest choice of a group, or `top2`, the sum of its largest two.
        scale: Factor on the routing weights.
        expert_scale: Further factor on the routing weight of each expert, [experts].
    """

    x: Value
    out: str
    weight: WeightUse
    top_k: int
    normalize: bool
    bias: WeightUse | None = None
    scoring: str = "softmax"
    selection_bias: WeightUse | None = None
    groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    scale: float = 1.0
    expert_scale: WeightUse | None = None

    @property
    def experts(self) -> int:
        """Number of experts to select from."""
        return self.weight.shape[0]


@dataclass(frozen=True)
class Experts:
    """out = sum of weight * down(activation(gate(x)) * up(x)) over the experts of each row.

    Attributes:
        router: Value of the `Router` that selects the experts and their routing weights.
        gates: Gate projection of each expert, [width, features of x].
        ups: Up projection of each expert, [width, features of x].
        downs: Down projection of each expert, [features of x, width].
        activation: Activation, as in `GatedActivation`.
        width: Width of an expert's inner layer.
        clamp: As in `GatedActivation`.
        gate_bias: Biases of the gate projections, [experts, width]; None for none.
        up_bias: Biases of the up projections, [experts, width]; None exactly if `gate_bias` is.
        down_bias: Biases of the down projections, [experts, features of x]; None for none.
        scales_inputs: Whether the routing weight multiplies the input of an expert, and not its
            output.
    """

    x: Value
    router: Value
    out: str
    gates: tuple[WeightUse, ...]
    ups: tuple[WeightUse, ...]
    downs: tuple[WeightUse, ...]
    activation: str
    width: int
    clamp: Clamp | None = None
    gate_bias: WeightUse | None = None
    up_bias: WeightUse | None = None
    down_bias: WeightUse | None = None
    scales_inputs: bool = False


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
class ChannelFactors:
    """Factors on consecutive runs of channels.

    Attributes:
        counts: Number of channels of each run.
        factors: Factor on each run.
    """

    counts: tuple[int, ...]
    factors: tuple[float, ...]


@dataclass(frozen=True)
class Concat:
    """out = [x, y]: the elements of x, then those of y."""

    x: Value
    y: Value
    out: str


@dataclass(frozen=True)
class ShortConvolution:
    """Causal convolution along the tokens, with taps of its own for each channel.

    u[r] is the row r of x. If a row of x consists of three parts b, c and v of equal width, then
    u[r] = b * v. With y[r] = f * sum over j of w[:, 0, j] * u[r - kernel + 1 + j] + bias, out[r] is
    activation(y[r]), or c * activation(y[r]) if there are three parts. Inputs before the first
    token of the sequence are zero. The state holds the latest `kernel` inputs u; that of slot s is
    entry s mod `kernel`.

    Attributes:
        weight: [channels, 1, kernel].
        state: Index of the op's state, see `Graph.states`.
        activation: Activation, as in `GatedActivation`; None for none.
        parts: Parts of a row of x: 3 if it holds the gates b and c beside the values, else 1.
        factors: The factors f on the channels; None for 1.
    """

    x: Value
    out: str
    weight: WeightUse
    bias: WeightUse | None
    state: int
    activation: str | None
    parts: int = 1
    factors: ChannelFactors | None = None

    @property
    def channels(self) -> int:
        """Elements of a row of the output."""
        return self.weight.shape[0]

    @property
    def kernel(self) -> int:
        """Taps of a channel."""
        return self.weight.shape[-1]

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of the state of one sequence."""
        return self.kernel, self.channels


@dataclass(frozen=True)
class DeltaRule:
    """The gated delta rule (Yang et al. 2024, arXiv 2412.06464) over a state S for each head.

    With the unit vectors k = key / sqrt(|key|^2 + eps) and q = query / sqrt(|query|^2 + eps), the
    decay g = exp(-exp(rate) * softplus(decay + decay_bias)) and b = sigmoid(strength):

        S = g S + k (b (value - (g S)^T k))^T, then out = S^T q / sqrt(key_dim)

    S is zero before the first token. Value head h uses the query and key of key head
    h // (heads / key_heads).

    Attributes:
        qkv: Queries and keys, [key_heads, key_dim] each, then values, [heads, value_dim].
        decay: [heads].
        strength: [heads].
        rate: Logarithm of the rate of decay, [heads].
        decay_bias: [heads].
        state: Index of the op's state, see `Graph.states`.
        heads: Value heads, a multiple of `key_heads`.
        eps: Number added to the squared lengths of queries and keys.
    """

    qkv: Value
    decay: Value
    strength: Value
    out: str
    rate: WeightUse
    decay_bias: WeightUse
    state: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    eps: float = 1e-6

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of the state of one sequence."""
        return self.heads, self.key_dim, self.value_dim


@dataclass(frozen=True)
class StateSpace:
    """The selective state space of Mamba 2 (Dao and Gu 2024, arXiv 2405.21060): a state S per head.

    With the length of a step d = softplus(step_scale * step + step_bias), limited to the range from
    `least_step` to `most_step`, and the decay g = exp(-exp(rate) * d):

        S = g S + d B x^T, then out = S^T C + skip * x

    S is zero before the first token. Head h uses B and C of group h // (heads // groups).

    Attributes:
        xbc: Inputs x, [heads, head_dim], then B and C, [groups, state_dim] each.
        step: [heads].
        rate: Logarithm of the rate of decay, [heads].
        step_bias: [heads].
        skip: [heads].
        state: Index of the op's state, see `Graph.states`.
        heads: Heads, a multiple of `groups`.
        most_step: None for no upper limit.
    """

    xbc: Value
    step: Value
    out: str
    rate: WeightUse
    step_bias: WeightUse
    skip: WeightUse
    state: int
    heads: int
    head_dim: int
    groups: int
    state_dim: int
    least_step: float = 0.0
    most_step: float | None = None
    step_scale: float = 1.0

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of the state of one sequence."""
        return self.heads, self.state_dim, self.head_dim


@dataclass(frozen=True)
class Residual:
    """out = x + branch * scale."""

    x: Value
    branch: Value
    out: str
    scale: float = 1.0


@dataclass(frozen=True)
class Scale:
    """out = factor * weight * x; a weight of one element is the same factor for all of a row."""

    x: Value
    out: str
    factor: float = 1.0
    weight: WeightUse | None = None


@dataclass(frozen=True)
class Sparsify:
    """out = max(x - (mean + multiplier * deviation), 0), over the elements of a row.

    The deviation is the standard deviation of the row, sqrt(mean((x - mean)^2)).
    """

    x: Value
    out: str
    multiplier: float


@dataclass(frozen=True)
class AppendStream:
    """out = [x, y * rms(x_0) / max(rms(y), sqrt(floor))]: y becomes the last stream of x.

    A row of x consists of streams as wide as y, of which x_0 is the first; rms is the root of the
    mean square.
    """

    x: Value
    y: Value
    out: str
    floor: float


@dataclass(frozen=True)
class MeanOfStreams:
    """out = (x_0 + ... + x_(count - 1)) / count, where x_j are the streams of a row of x."""

    x: Value
    out: str
    count: int


@dataclass(frozen=True)
class StreamCoefficients:
    """out = tanh(factor * x R^T) W^T.

    Attributes:
        router: R, [streams, features of x].
        weight: W, [coefficients, streams].
    """

    x: Value
    out: str
    router: WeightUse
    weight: WeightUse
    factor: float


@dataclass(frozen=True)
class MixStreams:
    """out_j = x_j + sum over i of c[j * count + i] x_i: AltUp's prediction (arXiv 2301.13310).

    Attributes:
        coefficients: c, count^2 elements a row.
        count: Streams of a row.
    """

    x: Value
    coefficients: Value
    out: str
    count: int


@dataclass(frozen=True)
class CorrectStreams:
    """out_j = x_j + (1 + c[j]) (update - x_active): AltUp's correction.

    Attributes:
        coefficients: c, count elements a row.
        count: Streams of a row.
        active: The stream that the update replaces where c is 0.
    """

    x: Value
    update: Value
    coefficients: Value
    out: str
    count: int
    active: int


@dataclass(frozen=True)
class AddToStreams:
    """out_j = x_j + update for the streams j of a row from `first` on, and x_j for the others."""

    x: Value
    update: Value
    out: str
    count: int
    first: int


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
    | MeanOfStreams
    | StreamCoefficients
    | MixStreams
    | CorrectStreams
    | AddToStreams
    | Head
)


Stateful = ShortConvolution | DeltaRule | StateSpace
"""The ops that have a recurrent state."""


def values_read(op: Op) -> tuple[str, ...]:
    """Return the names of the values that an op reads, in the order of its fields."""
    kind: type = type(op)
    found = (getattr(op, name) for name in _operands(kind))
    return tuple(value for value in found if value is not None)


@cache
def _operands(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of an op type that hold the name of a value, or None."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if Value in (hint, *get_args(hint)))


def uses(op: Op) -> tuple[WeightUse, ...]:
    """Return the tensors that an op reads; those of experts are ordered by expert."""
    held = [getattr(op, one.name) for one in fields(op)]
    single = (one for one in held if isinstance(one, WeightUse))
    stacks = (one for one in held if isinstance(one, tuple))
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
        found: dict[str, WeightUse] = {}
        for op in self.ops:
            for use in uses(op):
                found.setdefault(use.name, use)
        return tuple(found.values())

    def weight_kinds(self) -> dict[str, frozenset[WeightKind]]:
        """Return how each tensor is read, by name; a tied embedding is read in two ways."""
        found: dict[str, frozenset[WeightKind]] = {}
        for op in self.ops:
            for use in uses(op):
                found[use.name] = found.get(use.name, frozenset()) | {use.kind}
        return found

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
        elements = sum(one.elements for one in self.caches.values())
        return elements * tokens * bytes_per_element
