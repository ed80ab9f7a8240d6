"""From projections to attention in one dispatch: norms and rope of the heads, and the cache.

What `rms_norm_in_place`, `rope` and `kv_store` do one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.kv_cache import KV_TYPES, KvSpec
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import power_of_two

BINDINGS = 8
"""Storage buffers, without those of the norms and the slot mapping."""


@dataclass(frozen=True)
class Placing:
    """What becomes of a layer's projections.

    Attributes:
        heads: Query heads.
        cache: Sizes and type of the caches.
        pairs: Rotated pairs of a head, 0 for none.
        eps: Of the norms of queries and keys.
        offset: Added to their gains.
    """

    heads: int
    cache: KvSpec
    pairs: int = 0
    eps: float = 0.0
    offset: float = 0.0

    def suits(self, ctx: OpContext, max_buffers: int, *, normed: bool) -> bool:
        """Whether the kernel can do it."""
        bound = BINDINGS + 2 * normed + (ctx.state.slot_mapping is not None)
        return KV_TYPES[self.cache.dtype].block == 1 and bound <= max_buffers


def place_rows(
    ctx: OpContext,
    projected: tuple[BufferSlice, BufferSlice, BufferSlice],
    table: BufferSlice | None,
    gains: tuple[BufferSlice, BufferSlice] | None,
    caches: tuple[BufferSlice, BufferSlice],
    *,
    spec: Placing,
    label: str,
) -> list[Dispatch]:
    """One launch; `spec.suits` must hold.

    Args:
        ctx: Where it is lowered to.
        projected: Queries [rows, heads, head_dim], changed in place, keys and values
            [rows, kv_heads, head_dim].
        table: f32 [context, pairs, 2], cosine and sine; None where no pair rotates.
        gains: Norm weights of queries and keys, f32 [head_dim] each, or None.
        caches: Keys and values [kv_heads, context, head_dim], written at the rows' slots.
        spec: What is computed.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    cache, slot_mapping = spec.cache, ctx.state.slot_mapping
    cache.check(label, *caches)
    need_multiple(f"{label}: head size", cache.head_dim, 4)
    if 2 * spec.pairs > cache.head_dim:
        raise FormatError(
            "more elements rotate than a head has", where=label, expected=cache.head_dim
        )
    for name, buffer, heads in zip(
        "qkv", projected, (spec.heads, cache.kv_heads, cache.kv_heads), strict=True
    ):
        ctx.need_values(f"{label}: {name}", buffer, ctx.max_rows * heads * cache.head_dim)
    q, k, v = projected
    buffers = {
        "current": ctx.state.step,
        "positions": ctx.state.positions,
        "table": k if table is None else table,  # a stand-in that is not read
        "q": q,
        "k": k,
        "v": v,
        "k_cache": caches[0],
        "v_cache": caches[1],
    }
    if gains is not None:
        buffers |= {"q_gain": gains[0], "k_gain": gains[1]}
    if slot_mapping is not None:
        buffers["slot_mapping"] = slot_mapping
    what = kernel(
        "place_rows",
        variables={
            "KV": cache.dtype,
            "NORM": gains is not None,
            "ROPE": table is not None,
            "MAPPED": slot_mapping is not None,
            "SUBGROUPS": ctx.subgroups,
            "VALUE": ctx.values,
        },
        constants={
            "WG": power_of_two(cache.head_dim // 2, 32, 128),
            "HEADS": spec.heads,
            "KV_HEADS": cache.kv_heads,
            "HEAD_DIM": cache.head_dim,
            "PAIRS": spec.pairs,
            "CONTEXT": cache.context,
            "EPS": spec.eps,
            "OFFSET": spec.offset,
        },
        variant=cache.dtype,
        trusted=True,
    )
    return [dispatch(what, buffers, Grid(spec.heads + 2 * cache.kv_heads, 1, 1, 1), label)]
