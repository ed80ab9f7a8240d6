"""The ops that read other rows through a cache of keys and values, or of latents."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.weights import Value, WeightUse


def distance_buckets(buckets: int, distance: int) -> tuple[int, ...]:
    """Return the bucket of each distance of two tokens, from 0 up to that of the last bucket.

    Half of the buckets are those of later tokens, which come after the others. Of each half, the
    first half of the buckets are single distances, and the others grow with the logarithm of the
    distance. Source: Raffel et al. 2020, arXiv 1910.10683, section 2.1.

    Args:
        buckets: Number of buckets.
        distance: Distance from which all tokens are in the last bucket.
    """
    half = buckets // 2
    single = half // 2
    wide = half - single

    def bucket(step: int) -> int:
        # The largest k with k <= wide log(step / single) / log(distance / single), in integers.
        powers = (
            k for k in range(wide, -1, -1) if step**wide * single**k >= distance**k * single**wide
        )
        return min(half - 1, single + next(powers))

    return tuple(step if step < single else bucket(step) for step in range(distance + 1))


def alibi_exponents(heads: int, largest: float) -> tuple[float, ...]:
    """Return the binary logarithms of ALiBi's slopes, one for each head.

    The slopes of n heads, a power of two, fall from 2^(-largest / n) to 2^-largest in equal ratios.
    Any further heads have those of 2n heads that lie between them, from the largest on. Source:
    Press et al. 2022, arXiv 2108.12409, section 3, and the authors' code for other numbers of
    heads.

    Args:
        heads: Number of heads.
        largest: Negative exponent of the smallest slope.
    """
    power = 1 << (heads.bit_length() - 1)
    between = (0.5 - index for index in range(1, heads - power + 1))
    steps = (*(-index for index in range(1, power + 1)), *between)
    return tuple(step * largest / power for step in steps)


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
        bias: [buckets, heads], a bias on the scores that depends on the distance of the two tokens,
            whose bucket `distance_buckets` gives; None for none.
        bias_distance: Distance from which all tokens are in the last bucket.
        alibi: The distance of the two tokens times a slope of the head is subtracted from the
            scores; `alibi_exponents` gives the slopes, with this as `largest`. None for no ALiBi.
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
    bias: WeightUse | None = None
    bias_distance: int = 0
    alibi: float | None = None


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
