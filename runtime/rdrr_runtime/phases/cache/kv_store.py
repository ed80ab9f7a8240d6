"""Stores the new keys and values of a pass in the key-value caches."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.cache.kv_cache import KV_TYPES, CacheRecord, KvSpec, LayerCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase, Work

THREADS = 64


class KvStore(CacheRecord):
    """Parameters of kv_store.wgsl."""

    shader = "cache/kv_store"


class KvStoreBlocks(CacheRecord):
    """Parameters of kv_store_blocks.wgsl."""

    shader = "cache/kv_store_blocks"


def kv_store(
    ctx: OpContext,
    k: BufferSlice,
    v: BufferSlice,
    caches: LayerCache,
    *,
    cache: KvSpec,
    label: str,
) -> list[Phase]:
    """Store the keys and values of a pass at the slots of its rows (the slot mapping).

    Args:
        ctx: Lowering context; its state holds the sequence and slot of each row. For a quantized
            cache the rows must be in consecutive slots of one sequence.
        k: Keys [rows, kv_heads, head_dim].
        v: Values [rows, kv_heads, head_dim].
        caches: Key and value cache of the layer.
        cache: Sizes and type of the caches.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernels do not support a size, a buffer is too small, or the cache is
            quantized and there are several sequences.
    """
    width, block = cache.kv_heads * cache.head_dim, KV_TYPES[cache.dtype].block
    cache.check(label, caches)
    ctx.need_values(f"{label}: k", k, ctx.max_rows * width)
    ctx.need_values(f"{label}: v", v, ctx.max_rows * width)
    if block > 1 and (ctx.multi_sequence or cache.sequences > 1):
        raise FormatError(
            "a quantized cache holds one sequence only", where=label, found=cache.dtype
        )
    kind = KvStore if block == 1 else KvStoreBlocks
    record = kind(threads=THREADS, variant=cache.dtype, **cache.parameters(ctx))
    buffers = {"current": ctx.state.step, "k": k, "v": v, **caches.buffers}
    return [Phase(record, buffers, Work(-(-width // (THREADS * max(block, 4))), 1), label)]
