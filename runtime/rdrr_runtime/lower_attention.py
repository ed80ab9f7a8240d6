"""Attention as dispatches: keys and values into the cache, then the kernel that was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rdrr_manifests.graph import Attention

from rdrr_runtime.kernels._tuning import AnySite
from rdrr_runtime.kernels.attention import (
    SPLITS,
    AttentionKernel,
    AttentionSpec,
    SplitTuning,
    attention,
)
from rdrr_runtime.kernels.kv_store import kv_store

if TYPE_CHECKING:
    from rdrr_runtime.lower import Lowering


def lower_attention(low: Lowering, op: Attention) -> None:
    """Store keys and values, then attend to all that the cache holds."""
    values, layer = low.values, low.cache.layers[op.layer]
    low.emit(
        kv_store(
            low.ctx,
            values.get(op.k),
            values.get(op.v),
            layer.keys,
            layer.values,
            cache=low.cache.spec,
            label=f"{op.out}.store",
        )
    )
    spec = AttentionSpec(
        heads=op.heads,
        cache=low.cache.spec,
        scale=op.scale,
        window=op.window or 0,
        softcap=op.softcap or 0.0,
    )
    which, why = low.select.attention(spec, low.ctx)
    split = which is AttentionKernel.SPLIT_KV
    sites: tuple[AnySite, ...] = ()
    if split:
        parts = low.ctx.site(f"softmax split_kv.{spec.shape}", spec.split, _splits(low, spec))
        spec, sites = replace(spec, split=parts.used), (parts,)
    size = spec.scratch_size(low.ctx.max_rows) if split else 0
    made = attention(
        low.ctx,
        values.get(op.q),
        layer.keys,
        layer.values,
        values.take(op.out, op.heads * op.head_dim),
        spec=spec,
        which=which,
        scratch=low.workspace.named(f"split.{size}", size) if split else None,
        label=op.out,
        sites=sites,
    )
    low.emit(made, why)
    values.read(op.q, op.k, op.v)


def _splits(low: Lowering, spec: AttentionSpec) -> Iterator[SplitTuning]:
    """Ways to part the keys whose scratch can be bound."""
    for one in SPLITS:
        size = replace(spec, split=one).scratch_size(low.ctx.max_rows)
        if size <= low.select.max_binding:
            yield one
