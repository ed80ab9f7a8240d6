"""From projections to attention in one phase: norms and rope of the heads, and the cache.

What `rms_norm_in_place`, `rope` and `kv_store` do one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.head_transform import HeadTransform, TransformRecord
from rdrr_runtime.phases.kv_cache import KV_TYPES, CacheRecord, KvSpec, LayerCache
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.weight_checks import power_of_two


@dataclass(frozen=True, kw_only=True)
class NormRopeStore(CacheRecord, TransformRecord):
    """Parameters of norm_rope_store.wgsl.

    Attributes:
        subgroups: Whether sums go through subgroup operations.
        heads: Query heads.
    """

    shader = "norm_rope_store"
    trusted = True

    subgroups: bool = choice()
    heads: int


def refusal(cache: KvSpec) -> str | None:
    """Return what stands in the way of storing rows in a cache, if anything does."""
    block = KV_TYPES[cache.dtype].block
    return None if block == 1 else f"a cache in {cache.dtype} is stored in blocks of {block}"


def norm_rope_store(
    ctx: OpContext,
    projected: tuple[BufferSlice, BufferSlice, BufferSlice],
    held: LayerCache,
    *,
    heads: int,
    cache: KvSpec,
    transform: HeadTransform,
    label: str,
) -> list[Phase]:
    """Return one phase; `refusal` must have nothing against it.

    Args:
        ctx: Where it is lowered to; its state holds the sequences, slots and positions of the rows.
        projected: Queries [rows, heads, head_dim], changed in place, keys and values
            [rows, kv_heads, head_dim].
        held: The caches that keys and values go to.
        heads: Query heads.
        cache: Sizes and type of the caches.
        transform: What is done to queries and keys.
        label: What the op is.

    Raises:
        FormatError: Sizes that the kernel does not support.
    """
    cache.check(label, held)
    transform.check(label, cache.head_dim)
    counts = (heads, cache.kv_heads, cache.kv_heads)
    for name, buffer, count in zip("qkv", projected, counts, strict=True):
        ctx.need_values(f"{label}: {name}", buffer, ctx.max_rows * count * cache.head_dim)
    buffers = {
        "current": ctx.state.step,
        **dict(zip("qkv", projected, strict=True)),
        **held.buffers,
        **transform.buffers,
    }
    record = NormRopeStore(
        threads=power_of_two(cache.head_dim // 2, 32, 128),
        variant=cache.dtype,
        subgroups=ctx.subgroups,
        heads=heads,
        **cache.parameters(ctx),
        **transform.parameters,
    )
    return [Phase(record, buffers, Work(sum(counts), 1), label)]
