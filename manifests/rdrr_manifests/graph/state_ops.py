"""The ops that read other rows through a recurrent state."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.weights import Value, WeightUse


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
