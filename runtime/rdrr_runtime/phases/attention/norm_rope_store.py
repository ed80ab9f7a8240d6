"""Norms and rope of query and key heads, and the store into the KV cache, in one phase.

It computes what `normalize_in_place`, `rope` and `kv_store` compute one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.attention.head_transform import HeadTransform, TransformRecord
from rdrr_runtime.phases.cache.kv_cache import KV_TYPES, CacheRecord, KvSpec, LayerCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase, Work, choice

TEAM = 32
"""Threads that compute a head."""

MANY_ROWS = 64
"""Rows of a pass from which on a workgroup computes several heads. For 512 rows of llama-1b on an
H200, a workgroup for each head took 17.8 us, and for 8 heads 6.6; rope and store as three
dispatches took 14.2."""

MOST_ELEMENTS = 512
"""Elements of the heads of a workgroup: 8 heads of 64 were the fastest, 4 of 128 and 2 of 256."""


@dataclass(frozen=True, kw_only=True)
class NormRopeStore(CacheRecord, TransformRecord):
    """Parameters of norm_rope_store.wgsl.

    Attributes:
        team: Threads that compute a head.
        heads: Query heads.
    """

    shader = "attention/norm_rope_store"
    trusted = True

    subgroups: bool = choice()
    team: int = choice()
    heads: int


def refusal(cache: KvSpec) -> str | None:
    """Return why the phase cannot store rows in a cache, or None if it can."""
    block = KV_TYPES[cache.dtype].block
    return None if block == 1 else f"a cache in {cache.dtype} is quantized in blocks of {block}"


def heads_of_item(ctx: OpContext, head_dim: int, heads: int) -> int:
    """Return how many of the `heads` of a row a workgroup computes."""
    fitting = min(MOST_ELEMENTS // head_dim, ctx.max_threads // TEAM, heads)
    return max(fitting, 1) if ctx.max_rows >= MANY_ROWS else 1


def norm_rope_store(
    ctx: OpContext,
    projected: tuple[BufferSlice, BufferSlice, BufferSlice],
    caches: LayerCache,
    *,
    heads: int,
    cache: KvSpec,
    transform: HeadTransform,
    label: str,
) -> list[Phase]:
    """Lower norms, rope and cache store to one phase; `refusal` must return None for the cache.

    Args:
        ctx: Lowering context; its state holds the sequences, slots and positions of the rows.
        projected: Queries [rows, heads, head_dim], changed in place, then keys and values, each
            [rows, kv_heads, head_dim].
        caches: Key and value cache of the layer.
        heads: Query heads.
        cache: Sizes and type of the caches.
        transform: Norm and rope of queries and keys.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    cache.check(label, caches)
    transform.check(label, cache.head_dim)
    counts = (heads, cache.kv_heads, cache.kv_heads)
    for name, buffer, count in zip("qkv", projected, counts, strict=True):
        ctx.need_values(f"{label}: {name}", buffer, ctx.max_rows * count * cache.head_dim)
    buffers = {
        "current": ctx.state.step,
        **dict(zip("qkv", projected, strict=True)),
        **caches.buffers,
        **transform.buffers,
    }
    held = heads_of_item(ctx, cache.head_dim, sum(counts))
    record = NormRopeStore(
        threads=TEAM * held,
        team=TEAM,
        variant=cache.dtype,
        subgroups=ctx.subgroups,
        heads=heads,
        **cache.parameters(ctx),
        **transform.parameters,
    )
    return [Phase(record, buffers, Work(-(-sum(counts) // held), 1), label)]
