"""Attention over latents, for all keys of a row or for one split of them."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_format.errors import DeviceError

from rdrr_runtime.phases.attention.latent import LatentSpec
from rdrr_runtime.phases.attention.spec import AttentionRecord, AttentionSpec
from rdrr_runtime.phases.cache.kv_cache import LayerCache
from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Work, choice

HEADS = 4
"""Query heads of an item, which share the latents it reads."""

PARTS = 16
"""Threads of `latent_decode` that share the score of a key."""

SCAN_THREADS = (128, 64, 32)
SPLIT_THREADS = (256, 128, 64, 32)


@dataclass(frozen=True, kw_only=True)
class LatentScan(AttentionRecord):
    """Parameters of latent_attention.wgsl.

    Attributes:
        own_words: Vectors of 4 output elements of each head that a thread accumulates.
        rope_dim: Elements of a rotated key.
    """

    shader = "attention/latent_attention"
    trusted = True

    subgroups: bool = choice()
    own_words: int = choice()
    rope_dim: int


@dataclass(frozen=True, kw_only=True)
class LatentDecode(AttentionRecord):
    """Parameters of latent_decode.wgsl.

    Attributes:
        key_words: Words of a key that a thread loads.
        value_keys: Keys at a time of which a thread adds up words.
        own_words: Words of the sums of each head that a thread accumulates.
        rope_dim: Elements of a rotated key.
        splits: Number of splits of the keys.
    """

    shader = "attention/latent_decode"
    trusted = True

    parts: int = choice()
    lanes: int = choice()
    key_words: int = choice()
    value_keys: int = choice()
    own_words: int = choice()
    rope_dim: int
    splits: int


def latent_attention(
    ctx: OpContext,
    queries: BufferSlice,
    caches: LayerCache,
    out: BufferSlice,
    spec: LatentSpec,
    *,
    label: str,
) -> list[Phase]:
    """Return the sum of the latents that each head attends to.

    Args:
        ctx: Lowering context.
        queries: [rows, heads, latent + rope_dim].
        caches: Caches of the layer, which already hold the rows of the pass.
        out: The result, [rows, heads, latent].
        spec: Sizes.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernels do not support a size, or a buffer is too small.
        DeviceError: The queries of 4 heads do not fit workgroup memory.
    """
    spec.check(label, caches)
    _need_queries(ctx, queries, spec, label)
    ctx.need_values(f"{label}: out", out, ctx.max_rows * spec.heads * spec.latent)
    # Beside the queries, three vectors of 4 a thread: its weights, and what it brings to the shared
    # memory of the sums and of the maxima.
    sizes = {threads: _query_bytes(spec) + 48 * threads for threads in SCAN_THREADS}
    threads = _fitting(ctx, sizes, label)
    record = LatentScan(
        threads=threads,
        variant=spec.cache.dtype,
        subgroups=ctx.subgroups,
        own_words=-(-spec.latent // (4 * threads)),
        rope_dim=spec.rope_dim,
        **spec.attention().parameters(ctx),
    )
    buffers = {"current": ctx.state.step, "q": queries, **caches.buffers, "out": out}
    return [Phase(record, buffers, Work(-(-spec.heads // HEADS), 1), label)]


def latent_decode(
    ctx: OpContext,
    queries: BufferSlice,
    caches: LayerCache,
    partial: tuple[BufferSlice, BufferSlice],
    spec: LatentSpec,
    attended: AttentionSpec,
    *,
    label: str,
    tuning_keys: tuple[AnyTuningKey, ...] = (),
) -> list[Phase]:
    """Return partial results of attention over latents, one for each split of the keys.

    `latent_values` combines them.

    Args:
        ctx: Lowering context.
        queries: [rows, heads, latent + rope_dim].
        caches: Caches of the layer, which already hold the rows of the pass.
        partial: The results: sums, f32 [rows, heads, splits, latent], and statistics, f32
            [rows, heads, splits, 2]: maximum score and exp sum.
        spec: Sizes.
        attended: `spec.attention`, with the splits of the keys.
        label: Name of the op, for messages and profiles.
        tuning_keys: Tuning keys that the splits depend on.

    Raises:
        FormatError: The kernels do not support a size, or a buffer is too small.
        DeviceError: The queries of 4 heads do not fit workgroup memory.
    """
    spec.check(label, caches)
    _need_queries(ctx, queries, spec, label)
    sums, stats = partial
    need_floats(f"{label}: sums", sums, attended.sums_bytes(ctx.max_rows) // 4)
    need_floats(f"{label}: stats", stats, attended.stats_bytes(ctx.max_rows) // 4)
    words = spec.latent // 4
    # Beside the queries, in vectors of 4: of each key its padded parts and its weight, and of each
    # lane a total.
    sizes = {
        threads: _query_bytes(spec) + 16 * (threads // PARTS * (PARTS + 2) + _lanes(threads, words))
        for threads in SPLIT_THREADS
        if threads <= ctx.max_threads
    }
    threads = _fitting(ctx, sizes, label)
    lanes = _lanes(threads, words)
    record = LatentDecode(
        threads=threads,
        variant=spec.cache.dtype,
        parts=PARTS,
        lanes=lanes,
        key_words=-(-spec.query_dim // (4 * PARTS)),
        value_keys=-(-threads // (PARTS * lanes)),
        own_words=-(-words // threads),
        rope_dim=spec.rope_dim,
        splits=attended.splits,
        **attended.parameters(ctx),
    )
    partials = {"sums": sums, "stats": stats}
    buffers = {"current": ctx.state.step, "q": queries, **caches.buffers, **partials}
    items = -(-spec.heads // HEADS) * record.splits
    return [Phase(record, buffers, Work(items, 1), label, tuning_keys)]


def _lanes(threads: int, words: int) -> int:
    """Return the threads that share a word of the sums.

    Few enough that the sums of one head of all of them fit where the queries were.
    """
    return max(1, min(threads // words, HEADS))


def _need_queries(ctx: OpContext, queries: BufferSlice, spec: LatentSpec, label: str) -> None:
    ctx.need_values(f"{label}: queries", queries, ctx.max_rows * spec.heads * spec.query_dim)


def _query_bytes(spec: LatentSpec) -> int:
    """Return the bytes of workgroup memory that the queries of an item occupy."""
    return 4 * HEADS * spec.query_dim


def _fitting(ctx: OpContext, sizes: dict[int, int], label: str) -> int:
    """Return the first number of threads whose workgroup memory fits.

    Args:
        ctx: Lowering context.
        sizes: Bytes of workgroup memory for each number of threads, in order of preference.
        label: Name of the op, for the message.

    Raises:
        DeviceError: Nothing fits.
    """
    for threads, size in sizes.items():
        if size <= ctx.workgroup_storage:
            return threads
    raise DeviceError(
        "latent attention needs more workgroup memory than the device has",
        where=label,
        expected=f"at least {min(sizes.values())} bytes",
        found=ctx.workgroup_storage,
    )
