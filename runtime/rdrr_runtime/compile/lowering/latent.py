"""Lowering of multi-head latent attention."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey, TuningKey
from rdrr_manifests.graph.ops import LatentAttention

from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.phases.attention.latent import LatentSpec, latent_store
from rdrr_runtime.phases.attention.latent_attention import latent_attention, latent_decode
from rdrr_runtime.phases.attention.latent_products import latent_queries, latent_values
from rdrr_runtime.phases.attention.spec import SplitTuning
from rdrr_runtime.phases.cache.kv_cache import LayerCache
from rdrr_runtime.phases.products.fusion import AttentionSplits, Input

FEW_ROWS = 4
"""Most rows of different sequences for which the keys are split, since each row and 4 of its heads
occupy one workgroup."""

SPLIT = SplitTuning(16, 64)
"""How the keys are split: at least as many as a workgroup processes at a time."""

SPLITS = (SplitTuning(32, 32), SplitTuning(64, 16), SplitTuning(128, 8), SplitTuning(32, 128))


def lower_latent_attention(build: PassBuilder, op: LatentAttention) -> None:
    """Emit the store of latents, the products before and after attention, and attention."""
    ctx, values, label = build.ctx, build.values, op.out
    caches, table = build.cache.layers[op.layer], build.model.ropes[op.table]
    up = build.matrix(op.up)
    spec = LatentSpec(
        heads=op.heads,
        key_dim=op.key_dim,
        value_dim=op.value_dim,
        cache=build.cache.specs[op.layer],
        interleaved=op.interleaved,
        scale=op.scale,
    )
    size = ctx.value_bytes * ctx.max_rows * op.heads * spec.query_dim
    queries = build.workspace.named(f"latent queries.{ctx.max_rows}", size)
    norm = build.vector(op.norm), op.eps
    out, kv = values.allocate(op.out, op.heads * op.value_dim), values.get(op.kv)
    build.emit(latent_store(ctx, kv, caches, spec, norm, table, label=f"{label}.store"))
    q = values.get(op.q)
    build.emit(latent_queries(ctx, q, up, queries, spec, table, label=f"{label}.queries"))
    source, depends = _emit_attention(build, queries, caches, spec, label)
    phases = latent_values(ctx, source, up, out, spec, label=f"{label}.values", tuning_keys=depends)
    build.emit(phases)
    values.mark_read(op.q, op.kv)


def _emit_attention(
    build: PassBuilder, queries: BufferSlice, caches: LayerCache, spec: LatentSpec, label: str
) -> tuple[Input, tuple[AnyTuningKey, ...]]:
    """Emit attention; return its output and the tuning keys that this depends on."""
    ctx, rows, split = build.ctx, build.ctx.max_rows, _split(build, spec)
    if split is None:
        size = ctx.value_bytes * rows * spec.heads * spec.latent
        latents = build.workspace.named(f"latents.{rows}", size)
        build.emit(latent_attention(ctx, queries, caches, latents, spec, label=label))
        return Input(latents), ()
    attended, keys = spec.attention(split=split.used), (split,)
    sums = build.workspace.named("attention sums", attended.sums_bytes(rows))
    stats = build.workspace.named("attention stats", attended.stats_bytes(rows))
    phases = latent_decode(
        ctx, queries, caches, (sums, stats), spec, attended, label=label, tuning_keys=keys
    )
    build.emit(phases)
    return Input(sums, AttentionSplits(stats, attended.splits, spec.latent)), keys


def _split(build: PassBuilder, spec: LatentSpec) -> TuningKey[SplitTuning] | None:
    """Return the tuning key of how the keys are split; None if they are not.

    They are if the rows of the pass alone would leave a GPU underused.
    """
    rows = build.ctx.max_rows
    if rows > (FEW_ROWS if build.ctx.multi_sequence else 1):
        return None

    def fits(split: SplitTuning) -> bool:
        return spec.attention(split=split).sums_bytes(rows) <= build.model.max_binding

    if not fits(SPLIT):
        return None
    key = f"softmax latent_decode.{spec.attention().shape}, {rows} rows"
    return build.ctx.tuning_key(key, SPLIT, filter(fits, SPLITS))
