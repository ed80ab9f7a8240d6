"""Attention as dispatches: keys and values into the cache, then the kernel that was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rdrr_device.tuning import AnySite
from rdrr_manifests.graph import Attention

from rdrr_runtime.compile.select import Why
from rdrr_runtime.phases.attention import (
    SPLITS,
    AttentionKernel,
    AttentionSpec,
    SplitTuning,
    attention,
)
from rdrr_runtime.phases.kv_store import kv_store
from rdrr_runtime.phases.place_rows import Placing, place_rows

if TYPE_CHECKING:
    from rdrr_runtime.compile.fuse import Projections
    from rdrr_runtime.compile.lower import Lowering


def lower_attention(low: Lowering, op: Attention) -> None:
    """Store keys and values, then attend to all that the cache holds."""
    layer = low.cache.layers[op.layer]
    low.emit(
        kv_store(
            low.ctx,
            low.values.get(op.k),
            low.values.get(op.v),
            layer.keys,
            layer.values,
            cache=low.cache.spec,
            label=f"{op.out}.store",
        )
    )
    attend(low, op)


def placed_attention(low: Lowering, found: Projections) -> bool:
    """From projections that are there already to attention; False where something does not fit.

    Norms and rope of the heads and the cache are served by one kernel.
    """
    op, norms, ropes = found.attention, found.head_norms or (), found.ropes or ()
    pairs = low.graph.ropes[ropes[0].table].rotary_dim // 2 if ropes else 0
    spec = Placing(
        op.heads,
        low.cache.spec,
        pairs,
        norms[0].eps if norms else 0.0,
        float(norms[0].unit_offset) if norms else 0.0,
    )
    between = [one.x for one in (*norms, *ropes)]
    alone = all(low.values.readers[name] == 1 for name in between)
    if not (alone and spec.suits(low.ctx, low.max_buffers, normed=bool(norms))):
        return False
    made = tuple(one.out for one in found.linears)
    layer = low.cache.layers[op.layer]
    q, k, v = (low.values.get(name) for name in made)
    gains = tuple(low.weights.vectors[one.weight.name] for one in norms)
    launches = place_rows(
        low.ctx,
        (q, k, v),
        low.ropes[ropes[0].table] if ropes else None,
        (gains[0], gains[1]) if gains else None,
        (layer.keys, layer.values),
        spec=spec,
        label=f"{op.out}.place",
    )
    low.emit(launches, Why("auto: norms, rope and the cache in one"))
    for old, new in zip(made, (op.q, op.k, op.v), strict=True):
        if old != new:
            low.values.rename(old, new)
    attend(low, op)
    return True


def attend(low: Lowering, op: Attention) -> None:
    """Attend to all that the cache holds, the pass's own keys included."""
    layer = low.cache.layers[op.layer]
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
        low.values.get(op.q),
        layer.keys,
        layer.values,
        low.values.take(op.out, op.heads * op.head_dim),
        spec=spec,
        which=which,
        scratch=low.workspace.named(f"split.{size}", size) if split else None,
        label=op.out,
        sites=sites,
    )
    low.emit(made, why)
    low.values.read(op.q, op.k, op.v)


def _splits(low: Lowering, spec: AttentionSpec) -> Iterator[SplitTuning]:
    """Ways to part the keys whose scratch can be bound."""
    for one in SPLITS:
        size = replace(spec, split=one).scratch_size(low.ctx.max_rows)
        if size <= low.select.max_binding:
            yield one
