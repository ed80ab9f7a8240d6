"""Lowering of multi-head latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rdrr_device.tuning import AnyTuningKey
from rdrr_manifests.graph.ops import LatentAttention

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.phases.attention import SPLITS, scratch_size
from rdrr_runtime.phases.attention_spec import AttentionSpec, SplitTuning
from rdrr_runtime.phases.latent import (
    LatentSpec,
    latent_attention,
    latent_queries,
    latent_store,
    latent_values,
)

FEW_ROWS = 4
"""Most rows of different sequences for which the keys are split, since each row and 4 of its heads
occupy one workgroup."""


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
    size = ctx.value_bytes * ctx.max_rows * op.heads
    queries = build.workspace.named(f"latent queries.{ctx.max_rows}", size * spec.query_dim)
    latents = build.workspace.named(f"latents.{ctx.max_rows}", size * spec.latent)
    norm = build.vector(op.norm), op.eps
    out, kv = values.allocate(op.out, op.heads * op.value_dim), values.get(op.kv)
    build.emit(latent_store(ctx, kv, caches, spec, norm, table, label=f"{label}.store"))
    q = values.get(op.q)
    build.emit(latent_queries(ctx, q, up, queries, spec, table, label=f"{label}.queries"))
    attended, depends = _splits(build, spec)
    scratch = None
    if attended.splits > 1 and _may_split(build):
        size = scratch_size(attended, ctx.max_rows)
        scratch = build.workspace.named(f"split.{size}", size)
    phases = latent_attention(
        ctx,
        queries,
        caches,
        latents,
        spec,
        attended,
        scratch=scratch,
        label=label,
        tuning_keys=depends,
    )
    build.emit(phases)
    build.emit(latent_values(ctx, latents, up, out, spec, label=f"{label}.values"))
    values.mark_read(op.q, op.kv)


def _may_split(build: PassBuilder) -> bool:
    """Return whether the rows of the pass alone would leave a GPU underused."""
    return build.ctx.max_rows <= (FEW_ROWS if build.ctx.multi_sequence else 1)


def _splits(build: PassBuilder, spec: LatentSpec) -> tuple[AttentionSpec, tuple[AnyTuningKey, ...]]:
    """Return the attention with its splits of the keys, and the tuning key that decides them."""
    plain = spec.attention()
    if not _may_split(build):
        return plain, ()
    rows = build.ctx.max_rows

    def fitting() -> Iterator[SplitTuning]:
        for one in SPLITS:
            if scratch_size(replace(plain, split=one), rows) <= build.model.max_binding:
                yield one

    key = f"softmax latent_attention.{plain.shape}, {rows} rows"
    split = build.ctx.tuning_key(key, plain.split, fitting())
    return replace(plain, split=split.used), (split,)
