"""Multi-head latent attention, which reads compressed keys and values (arXiv 2405.04434).

The keys and values of a head are products of a matrix with the latent of a token. Instead of
expanding them for all tokens, the matrices are applied to the query and to the sum of the latents:

    latent_store      add the normed latent and the rotated key of a row to the cache
    latent_queries    queries that are multiplied by latents; their rotated part
                      (`rdrr_runtime.phases.attention.latent_products`)
    latent_attention  softmax, and the sum of the latents that it weighs
                      (`rdrr_runtime.phases.attention.latent_attention`)
    latent_decode     likewise for one split of the keys, so that a small batch fills a GPU
    latent_values     values that the sums stand for; it also combines the splits
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.attention.spec import AttentionSpec
from rdrr_runtime.phases.cache.kv_cache import CacheRecord, KvSpec, LayerCache
from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Work, choice

THREADS = 128


@dataclass(frozen=True)
class LatentSpec:
    """What the latent attention of a layer computes.

    Attributes:
        heads: Query heads.
        key_dim: Elements of a head's key that are made of the latent.
        value_dim: Elements of a head's value.
        cache: Sizes and type of the caches; the first holds latents, the second rotated keys.
        interleaved: Whether neighbouring elements form a rotated pair.
        scale: Factor on the scores.
    """

    heads: int
    key_dim: int
    value_dim: int
    cache: KvSpec
    interleaved: bool
    scale: float

    @property
    def latent(self) -> int:
        """Elements of a latent."""
        return self.cache.head_dim

    @property
    def rope_dim(self) -> int:
        """Elements of a rotated key."""
        return self.cache.parts[1].head_dim

    @property
    def query_dim(self) -> int:
        """Elements of a query that is multiplied by latents."""
        return self.latent + self.rope_dim

    def attention(self, **options: Any) -> AttentionSpec:
        """Return the attention over the latents, with `options` such as the splits of the keys."""
        return AttentionSpec(self.heads, self.cache, self.scale, **options)

    def check(self, label: str, caches: LayerCache) -> None:
        """Check the sizes, and the buffers of a layer.

        Raises:
            FormatError: The kernels do not support a size, or a buffer is too small.
        """
        need_multiple(f"{label}: latent", self.latent, 4)
        need_multiple(f"{label}: rotated key", self.rope_dim, 4)
        buffers = (caches.keys, caches.values)
        for part, buffer in zip(self.cache.parts, buffers, strict=True):
            need_floats(f"{label}: cache", buffer, part.size // 4)


@dataclass(frozen=True, kw_only=True)
class LatentStore(CacheRecord):
    """Parameters of latent_store.wgsl.

    Attributes:
        interleaved: Whether neighbouring elements form a pair.
        pairs: Rotated pairs of the key.
        eps: Epsilon added to the mean square.
    """

    shader = "attention/latent_store"
    trusted = True

    interleaved: bool = choice()
    subgroups: bool = choice()
    pairs: int
    eps: float


def latent_store(
    ctx: OpContext,
    kv: BufferSlice,
    caches: LayerCache,
    spec: LatentSpec,
    norm: tuple[BufferSlice, float],
    table: BufferSlice,
    *,
    label: str,
) -> list[Phase]:
    """Store the latents and rotated keys of a pass at the slots of its rows.

    Args:
        ctx: Lowering context; its state holds the position, sequence and slot of each row.
        kv: [rows, latent + rope_dim].
        caches: Caches of the layer.
        spec: Sizes.
        norm: Weight of the norm of the latents, f32 [latent], and its epsilon.
        table: Cosines and sines, f32 [context, rope_dim / 2, 2].
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernels do not support a size, or a buffer is too small.
    """
    spec.check(label, caches)
    gain, eps = norm
    ctx.need_values(f"{label}: kv", kv, ctx.max_rows * spec.query_dim)
    need_floats(f"{label}: gain", gain, spec.latent)
    record = LatentStore(
        threads=THREADS,
        variant=spec.cache.dtype,
        interleaved=spec.interleaved,
        subgroups=ctx.subgroups,
        pairs=spec.rope_dim // 2,
        eps=eps,
        **spec.cache.parameters(ctx),
    )
    buffers = {"current": ctx.state.step, "table": table, "gain": gain, "kv": kv}
    return [Phase(record, {**buffers, **caches.buffers}, Work(rows=1), label)]
