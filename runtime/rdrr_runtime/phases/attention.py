"""Attention over the caches: grouped queries, sliding window, softcap.

streaming   one workgroup a row and head: decode over a short context
split_kv    several workgroups share the keys of a row and head, then a second dispatch joins
them: decode over a long context, where rows times heads cannot fill a GPU
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_device.tuning import AnySite, Params
from rdrr_format.errors import DeviceError, FormatError

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.kv_cache import KV_TYPES, KvSpec
from rdrr_runtime.phases.shaders import kernel

WORKGROUP = 128
KEYS_PER_SPLIT = 256
MAX_SPLITS = 32


class AttentionKernel(StrEnum):
    """The variants, named as in the manifest's hints."""

    STREAMING = "streaming"
    SPLIT_KV = "split_kv"
    TILED_SMALL = "tiled_small"
    TILED_LARGE = "tiled_large"


TILE_ROWS = {AttentionKernel.TILED_SMALL: 8, AttentionKernel.TILED_LARGE: 16}
TILE_KEYS = (32, 16, 8)  # a multiple of 8


@dataclass(frozen=True)
class ScanTuning(Params):
    """Threads that share the keys of a row and head.

    Attributes:
        workgroup: A power of two.
    """

    workgroup: int = WORKGROUP


@dataclass(frozen=True)
class TileTuning(Params):
    """What a tile of `tiled_small` and `tiled_large` holds.

    Attributes:
        keys: A multiple of 8.
    """

    keys: int


@dataclass(frozen=True)
class SplitTuning(Params):
    """Parts of the keys of `split_kv`, each with a softmax of its own until they are joined.

    Attributes:
        keys: Keys of a part, where there are fewer parts than `most`.
        most: Parts at most.
    """

    keys: int = KEYS_PER_SPLIT
    most: int = MAX_SPLITS


SCANS = tuple(ScanTuning(threads) for threads in (64, 128, 256))
SPLITS = (SplitTuning(64), SplitTuning(128), SplitTuning(256), SplitTuning(512, 16))


@dataclass(frozen=True)
class AttentionSpec:
    """What a layer's attention computes.

    Attributes:
        heads: Query heads, a multiple of the caches' heads.
        cache: The caches.
        scale: Factor on the scores.
        window: Slots a row sees, its own included; 0 for all.
        softcap: Bound of the scores by tanh; 0 for none.
        split: Parts of the keys, for `split_kv`.
    """

    heads: int
    cache: KvSpec
    scale: float
    window: int = 0
    softcap: float = 0.0
    split: SplitTuning = SplitTuning()

    @property
    def splits(self) -> int:
        """Parts of the keys that `split_kv` makes of a full context."""
        return max(1, min(self.split.most, -(-self.cache.reach(self.window) // self.split.keys)))

    @property
    def shape(self) -> str:
        """Heads, cache and keys, for the keys of sites."""
        return self.cache.shape(self.heads, self.window)

    def scratch_size(self, max_rows: int) -> int:
        """Bytes of scratch that `split_kv` needs for passes of up to `max_rows` rows."""
        parts = max_rows * self.heads * self.splits
        return _stats_offset(self, max_rows) + 8 * parts


def _stats_offset(spec: AttentionSpec, max_rows: int) -> int:
    sums = 4 * max_rows * spec.heads * spec.splits * spec.cache.head_dim
    return -(-sums // 256) * 256


def attention(
    ctx: OpContext,
    q: BufferSlice,
    k_cache: BufferSlice,
    v_cache: BufferSlice,
    out: BufferSlice,
    *,
    spec: AttentionSpec,
    which: AttentionKernel = AttentionKernel.STREAMING,
    scratch: BufferSlice | None = None,
    label: str,
    sites: tuple[AnySite, ...] = (),
) -> list[Dispatch]:
    """Row r attends to the slots 0..base+r; its own key must have been stored.

    Where the state has a slot mapping, it attends to its own sequence's slots up to its own.

    Args:
        ctx: Where it is lowered to.
        q: [rows, heads, head_dim].
        k_cache: [kv_heads, context, head_dim].
        v_cache: [kv_heads, context, head_dim].
        out: [rows, heads, head_dim]; another buffer than q.
        spec: What is computed.
        which: The variant.
        scratch: At least `spec.scratch_size(max_rows)` bytes, for `split_kv`; may be shared by
            all layers.
        label: What the op is.
        sites: What the parts of `split_kv` depend on.

    Raises:
        FormatError: Sizes that do not suit, or `split_kv` without scratch.
        DeviceError: Too little workgroup memory for a tiled variant.
    """
    cache = spec.cache
    cache.check(label, k_cache, v_cache)
    if spec.heads % cache.kv_heads:
        raise FormatError(
            "query heads do not divide into groups",
            where=label,
            expected=f"a multiple of {cache.kv_heads}",
            found=spec.heads,
        )
    for name, buffer in (("q", q), ("out", out)):
        ctx.need_values(f"{label}: {name}", buffer, ctx.max_rows * spec.heads * cache.head_dim)
    buffers = {"current": ctx.state.step, "q": q, "k_cache": k_cache, "v_cache": v_cache}
    if which is AttentionKernel.STREAMING:
        return [_scan(ctx, spec, {**buffers, "out": out}, 1, label)]
    if which in TILE_ROWS:
        if ctx.state.slot_mapping is not None:
            raise FormatError("rows of several sequences share no tile", where=label, found=which)
        return [_tiled(ctx, spec, {**buffers, "out": out}, TILE_ROWS[which], label)]
    if scratch is None or scratch.size < spec.scratch_size(ctx.max_rows):
        raise FormatError(
            "split_kv needs scratch",
            where=label,
            expected=f"{spec.scratch_size(ctx.max_rows)} bytes",
            found=scratch and scratch.size,
        )
    # Two ranges of one buffer may both be written in a dispatch, or both be read.
    boundary = _stats_offset(spec, ctx.max_rows)
    parts = {
        "sums": scratch.range(0, boundary),
        "stats": scratch.range(boundary, 8 * ctx.max_rows * spec.heads * spec.splits),
    }
    return [
        _scan(ctx, spec, {**buffers, **parts}, spec.splits, label, sites),
        _combine(ctx, spec, {**parts, "out": out}, label, sites),
    ]


def tile_keys(spec: AttentionSpec, rows: int, workgroup_storage: int) -> int:
    """Keys of a tile that fit workgroup memory beside `rows` queries; 0 if none do."""
    return next((keys for keys in TILE_KEYS if _fits(spec, rows, keys, workgroup_storage)), 0)


def _fits(spec: AttentionSpec, rows: int, keys: int, workgroup_storage: int) -> bool:
    cache = spec.cache
    queries = 4 * rows * cache.head_dim
    tile = keys * (cache.head_dim + 4) * KV_TYPES[cache.dtype].tile_bytes
    weights = 4 * rows * (keys + 8)
    return queries + tile + weights <= workgroup_storage


def _tiled(
    ctx: OpContext, spec: AttentionSpec, buffers: dict[str, BufferSlice], rows: int, label: str
) -> Dispatch:
    keys = tile_keys(spec, rows, ctx.workgroup_storage)
    if not keys:
        raise DeviceError(
            f"the adapter's workgroup memory cannot hold a tile of {rows} rows",
            where=label,
            found=f"{ctx.workgroup_storage} bytes",
            hint="use streaming",
        )
    site = ctx.site(
        f"attention attention_tiled.{rows}.{spec.shape}, {ctx.max_rows} rows",
        TileTuning(keys),
        (TileTuning(one) for one in TILE_KEYS if _fits(spec, rows, one, ctx.workgroup_storage)),
    )
    what = kernel(
        "attention_tiled",
        variables={
            "KV": spec.cache.dtype,
            "VALUE": ctx.values,
            "KEYS_PER_THREAD": site.used.keys // 8,
            "OWN_WORDS": -(-spec.cache.head_dim // 32),
        },
        constants={"TILE_ROWS": rows, **_constants(spec)},
        variant=f"{rows}.{spec.cache.dtype}",
        trusted=True,
    )
    return dispatch(what, buffers, Grid(spec.heads, 1, 1, 1, rows), label, (site,))


def _constants(spec: AttentionSpec) -> dict[str, float | int | bool]:
    return {
        "HEADS": spec.heads,
        "GROUP": spec.heads // spec.cache.kv_heads,
        "HEAD_DIM": spec.cache.head_dim,
        "CONTEXT": spec.cache.context,
        "SCALE": spec.scale,
        "WINDOW": spec.window,
        "SOFTCAP": spec.softcap,
        **spec.cache.constants,
    }


def _scan(
    ctx: OpContext,
    spec: AttentionSpec,
    buffers: dict[str, BufferSlice],
    splits: int,
    label: str,
    sites: tuple[AnySite, ...] = (),
) -> Dispatch:
    cache, slot_mapping = spec.cache, ctx.state.slot_mapping
    split = "sums" in buffers
    if slot_mapping is not None:
        buffers = {**buffers, "slot_mapping": slot_mapping}
    site = ctx.site(
        f"attention attention.{'split_kv' if split else 'streaming'}.{spec.shape}, "
        f"{ctx.max_rows} rows",
        ScanTuning(),
        (one for one in SCANS if cache.head_dim // 4 <= one.workgroup <= ctx.max_threads),
    )
    what = kernel(
        "attention",
        variables={
            "KV": cache.dtype,
            "SPLIT": split,
            "SUBGROUPS": ctx.subgroups,
            "VALUE": ctx.values,
            "MAPPED": slot_mapping is not None,
        },
        constants={"WG": site.used.workgroup, "SPLITS": splits, **_constants(spec)},
        variant=f"{'split_kv' if split else 'streaming'}.{cache.dtype}",
    )
    return dispatch(what, buffers, Grid(spec.heads, 1, splits, 1), label, (site, *sites))


def _combine(
    ctx: OpContext,
    spec: AttentionSpec,
    buffers: dict[str, BufferSlice],
    label: str,
    sites: tuple[AnySite, ...],
) -> Dispatch:
    what = kernel(
        "attention_combine",
        variables={"VALUE": ctx.values},
        constants={
            "HEADS": spec.heads,
            "HEAD_DIM": spec.cache.head_dim,
            "SPLITS": spec.splits,
        },
    )
    return dispatch(
        what,
        {"current": ctx.state.step, **buffers},
        Grid(spec.heads, 1, 1, 1),
        f"{label}.combine",
        sites,
    )
