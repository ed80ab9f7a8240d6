"""Writing new keys and values into the caches."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.kv_cache import KV_TYPES, KvSpec
from rdrr_runtime.phases.shaders import kernel


def kv_store(
    ctx: OpContext,
    k: BufferSlice,
    v: BufferSlice,
    k_cache: BufferSlice,
    v_cache: BufferSlice,
    *,
    cache: KvSpec,
    label: str,
) -> list[Dispatch]:
    """Store the pass's keys and values at the slots base, base + 1..., or by the slot mapping.

    Args:
        ctx: Where it is lowered to.
        k: [rows, kv_heads, head_dim].
        v: [rows, kv_heads, head_dim].
        k_cache: [kv_heads, context, head_dim] of the cache's type.
        v_cache: As k_cache; another buffer.
        cache: Sizes and type of the caches.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    width = cache.kv_heads * cache.head_dim
    cache.check(label, k_cache, v_cache)
    ctx.need_values(f"{label}: k", k, ctx.max_rows * width)
    ctx.need_values(f"{label}: v", v, ctx.max_rows * width)
    block, slot_mapping = KV_TYPES[cache.dtype].block, ctx.state.slot_mapping
    variables: dict[str, str | int | bool] = {"KV": cache.dtype, "VALUE": ctx.values}
    if block == 1:
        variables["MAPPED"] = slot_mapping is not None
    elif slot_mapping is not None:
        raise FormatError(
            "blocks of a cache are stored for one sequence only", where=label, found=cache.dtype
        )
    what = kernel(
        "kv_store" if block == 1 else "kv_store_blocks",
        variables=variables,
        constants={
            "KV_HEADS": cache.kv_heads,
            "HEAD_DIM": cache.head_dim,
            "CONTEXT": cache.context,
            **cache.constants,
        },
        variant=cache.dtype,
    )
    buffers = {
        "current": ctx.state.step,
        "k": k,
        "v": v,
        "k_cache": k_cache,
        "v_cache": v_cache,
    }
    if slot_mapping is not None:
        buffers["slot_mapping"] = slot_mapping
    return [dispatch(what, buffers, Grid(-(-width // (64 * max(block, 4))), 1, 1, 1), label)]
