"""Attention of one token straight from its projections: the decode pass's second dispatch.

It leaves the parts of the keys unjoined; `matvec` joins them while it reads them for the output
projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_device.tuning import AnySite, Params

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.kv_cache import KvSpec
from rdrr_runtime.phases.shaders import kernel

WORKGROUPS = (256, 128)
"""Threads of a workgroup: the first for parts longer than `MIN_SPAN`, where it fits."""

MAX_GROUP = 8
MIN_SPAN = 64
MAX_SPLITS = 32
BINDINGS = 10

WHOLE_WORDS: Mapping[str, int] = MappingProxyType({"f16": 4, "f32": 4, "q8_0": 64})
"""Elements of a head that fill whole words of the cache, scales included: the new key's words are
written while other workgroups read those beside them."""


@dataclass(frozen=True)
class DecodeTuning(Params):
    """Threads that share a part of the keys.

    Attributes:
        workgroup: A power of two.
    """

    workgroup: int


@dataclass(frozen=True)
class SplitTuning(Params):
    """Parts of the keys, each with a softmax of its own until they are joined.

    Attributes:
        span: Keys that a part has at least.
        most: Parts at most.
    """

    span: int = MIN_SPAN
    most: int = MAX_SPLITS


CANDIDATES = tuple(DecodeTuning(threads) for threads in (64, 128, 256, 512))
SPLITS = (
    SplitTuning(32, 32),
    SplitTuning(32, 64),
    SplitTuning(64, 16),
    SplitTuning(64, 64),
    SplitTuning(128, 16),
    SplitTuning(128, 32),
    SplitTuning(256, 8),
)


@dataclass(frozen=True)
class DecodeAttention:
    """What a layer's attention computes.

    Attributes:
        heads: Query heads.
        cache: Sizes and type of the caches.
        pairs: Rotated pairs of a head, 0 for none.
        scale: Factor on the scores.
        window: Slots the token sees, its own included; 0 for all.
        softcap: Bound of the scores by tanh; 0 for none.
        eps: Of the norms of queries and keys.
        offset: Added to their gains.
        split: Parts of the keys.
    """

    heads: int
    cache: KvSpec
    pairs: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    eps: float = 0.0
    offset: float = 0.0
    split: SplitTuning = SplitTuning()

    @property
    def splits(self) -> int:
        """Parts that the keys are split into, at most."""
        return max(1, min(self.split.most, -(-self.cache.reach(self.window) // self.split.span)))

    @property
    def shape(self) -> str:
        """Heads, cache and keys, for the keys of sites."""
        return self.cache.shape(self.heads, self.window)

    @property
    def parts_bytes(self) -> int:
        """Bytes of the unjoined parts."""
        return 4 * self.heads * self.splits * self.cache.head_dim

    @property
    def stats_bytes(self) -> int:
        """Bytes of the parts' largest scores and masses."""
        return 8 * self.heads * self.splits

    def threads(self, ctx: OpContext) -> int:
        """Threads of a workgroup, 0 where none fits."""
        long = self.cache.reach(self.window) > MAX_SPLITS * MIN_SPAN
        for threads in WORKGROUPS if long else WORKGROUPS[1:]:
            if self._fits(threads, ctx):
                return threads
        return 0

    def others(self, ctx: OpContext) -> tuple[DecodeTuning, ...]:
        """Parameters that can run it."""
        return tuple(one for one in CANDIDATES if self._fits(one.workgroup, ctx))

    def _fits(self, threads: int, ctx: OpContext) -> bool:
        """Whether so many threads can run it."""
        group, words = self.heads // self.cache.kv_heads, self.cache.head_dim // 4
        enough = 8 * (group + 1) <= threads and words <= threads <= ctx.max_threads
        return enough and self._memory(threads) <= ctx.workgroup_storage

    def suits(self, ctx: OpContext, limits_buffers: int) -> bool:
        """Whether the kernel can run it."""
        group, head_dim = self.heads // self.cache.kv_heads, self.cache.head_dim
        return (
            (ctx.max_rows == 1 or ctx.state.slot_mapping is not None)
            and group <= MAX_GROUP
            and 8 * (group + 1) <= WORKGROUPS[-1]
            and head_dim // 4 <= WORKGROUPS[-1]
            and head_dim % WHOLE_WORDS[self.cache.dtype] == 0
            and self.threads(ctx) > 0
            and limits_buffers >= BINDINGS + (ctx.state.slot_mapping is not None)
            and (ctx.state.slot_mapping is None or self.cache.dtype != "q8_0")
        )

    def _memory(self, threads: int) -> int:
        """Bytes of workgroup memory."""
        group, head_dim = self.heads // self.cache.kv_heads, self.cache.head_dim
        lanes = threads // max(1, head_dim // 4)
        vectors = 4 * (group + 1) * (head_dim + 1)
        return vectors + group * (threads * (4 + 16) + 4 + 4 * lanes)


def attention_decode(
    ctx: OpContext,
    projected: BufferSlice,
    table: BufferSlice | None,
    gains: tuple[BufferSlice, BufferSlice] | None,
    caches: tuple[BufferSlice, BufferSlice],
    parts: BufferSlice,
    stats: BufferSlice,
    *,
    spec: DecodeAttention,
    label: str,
    sites: tuple[AnySite, ...] = (),
) -> list[Dispatch]:
    """One launch; `spec.suits` must hold, and mapped rows must be of different sequences.

    Args:
        ctx: Where it is lowered to.
        projected: [rows, heads + 2 kv_heads, head_dim]: queries, keys and values as projected.
        table: f32 [context, pairs, 2], cosine and sine; None where no pair rotates.
        gains: Norm weights of queries and keys, f32 [head_dim] each, or None.
        caches: Keys and values [kv_heads, context, head_dim].
        parts: f32 [rows, heads, splits, head_dim], written.
        stats: f32 [rows, heads, splits, 2], written.
        spec: What is computed.
        label: What the op is.
        sites: What the parts depend on.
    """
    cache = spec.cache
    buffers = {
        "current": ctx.state.step,
        "positions": ctx.state.positions,
        "table": projected if table is None else table,  # a stand-in that is not read
        "projected": projected,
        "k_cache": caches[0],
        "v_cache": caches[1],
        "x": parts,
        "stats": stats,
    }
    if gains is not None:
        buffers |= {"q_gain": gains[0], "k_gain": gains[1]}
    slot_mapping = ctx.state.slot_mapping
    if slot_mapping is not None:
        buffers["slot_mapping"] = slot_mapping
    rows = "" if slot_mapping is None else f", {ctx.max_rows} rows"
    site = ctx.site(
        f"attention attention_decode.{spec.shape}{rows}",
        DecodeTuning(spec.threads(ctx)),
        spec.others(ctx),
    )
    what = kernel(
        "attention_decode",
        variables={
            "KV": cache.dtype,
            "GROUP": spec.heads // cache.kv_heads,
            "NORM": gains is not None,
            "ROPE": table is not None,
            "VALUE": ctx.values,
            "SUBGROUPS": ctx.subgroups,
            "MAPPED": slot_mapping is not None,
        },
        constants={
            "WG": site.used.workgroup,
            "HEADS": spec.heads,
            "KV_HEADS": cache.kv_heads,
            "HEAD_DIM": cache.head_dim,
            "PAIRS": spec.pairs,
            "CONTEXT": cache.context,
            "SPLITS": spec.splits,
            "MIN_SPAN": spec.split.span,
            "SCALE": spec.scale,
            "WINDOW": spec.window,
            "SOFTCAP": spec.softcap,
            "EPS": spec.eps,
            "OFFSET": spec.offset,
            **cache.constants,
        },
        variant=cache.dtype,
        trusted=True,
    )
    grid = Grid(cache.kv_heads, spec.splits, 1, None if slot_mapping is None else 2)
    return [dispatch(what, buffers, grid, label, (site, *sites))]
