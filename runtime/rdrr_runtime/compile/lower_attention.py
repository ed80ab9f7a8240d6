"""Attention as phases: fused with the ops around it, or the store of keys and values by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_manifests.graph.ops import Attention, Linear

from rdrr_runtime.compile.attention import AttentionRequest, choose_attention
from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.decision import Reason
from rdrr_runtime.compile.lower_products import (
    Served,
    emit_branch,
    emit_product,
    fold,
    norm_input,
)
from rdrr_runtime.compile.pass_spec import Slots
from rdrr_runtime.compile.patterns import AttentionBlock, Projections
from rdrr_runtime.phases import attention_decode as decode
from rdrr_runtime.phases import norm_rope_store as placing
from rdrr_runtime.phases.attention import SPLITS, AttentionKernel, attention, scratch_size
from rdrr_runtime.phases.attention_spec import AttentionSpec, SplitTuning
from rdrr_runtime.phases.fusion import AttentionSplits, Input, Output
from rdrr_runtime.phases.head_transform import HeadTransform
from rdrr_runtime.phases.kv_store import kv_store

BATCH_SPLIT = SplitTuning(128, 16)
"""Splits of the keys of a row in a batch: the rows fill a device together, so there are fewer."""

FUSED = Reason("attention fused with norms, rope and the cache (auto)")
PLACED = Reason("norms, rope and the cache in one phase (auto)")


def serve_attention_block(build: PassBuilder, found: AttentionBlock) -> bool:
    """Serve a layer from its first norm to its output projection, if that is possible and wished.

    The projections, attention, and the output projection, which joins the splits of the keys: 3
    phases for one row. A batch with a row of each sequence takes two more, which round rows to
    int8.

    Returns:
        False where another way has to serve it; then nothing has been emitted.
    """
    projections, linears = found.projections, found.projections.linears
    one_row = build.ctx.max_rows == 1
    spec = attention_spec(build, projections.attention, decode.SPLIT if one_row else BATCH_SPLIT)
    projected = fold(build, [build.matrix(one.weight) for one in linears])
    out = _output(build, found, spec)
    alike = len({one.bias is None for one in linears}) == 1
    runs = (
        build.model.preferences.hint("attentionDecode") is None
        and (one_row or build.spec.slots is Slots.DISTINCT)
        and decode.refusal(build.ctx, spec) is None
    )
    if projected is None or out is None or not alike or not runs:
        return False
    depends: tuple[AnyTuningKey, ...] = ()
    if one_row:
        key = f"softmax attention_decode.{spec.shape}"
        split = build.ctx.tuning_key(key, spec.split, _splits(build, found, spec))
        spec, depends = replace(spec, split=split.used), (split,)
    elif spec.cache.head_dim % 16:
        return False
    _emit_block(build, found, spec, projected, out, depends)
    return True


def _output(build: PassBuilder, found: AttentionBlock, spec: AttentionSpec) -> Served | None:
    """Return the output projection, if it can join the splits of the keys."""
    op = found.output.op
    assert isinstance(op, Linear), "the pattern's output is a linear"
    return fold(build, (build.matrix(op.weight),), partials=spec.heads * spec.splits)


def _emit_block(
    build: PassBuilder,
    found: AttentionBlock,
    spec: AttentionSpec,
    projected: Served,
    out: Served,
    depends: tuple[AnyTuningKey, ...],
) -> None:
    norm, layer = found.projections.norm, f"layer {found.projections.attention.layer}"
    rows = build.ctx.max_rows
    size = build.ctx.value_bytes * rows * sum(one.n for one in projected.product.weights)
    y = build.workspace.named(f"projected.{rows}", size)
    output = Output((y,), bias=build.joined_bias(found.projections.linears))
    emit_product(build, projected, norm_input(build, norm), output, f"{layer} qkv")
    build.values.read(norm.x)
    sums, stats = _emit_attention(build, found.projections, spec, y, depends)
    joins = AttentionSplits(stats, spec.splits, spec.cache.head_dim)
    source = Input(sums, joins, name=f"{layer} attention")
    emit_branch(build, out, found.output, source, depends)


def _splits(
    build: PassBuilder, found: AttentionBlock, spec: AttentionSpec
) -> Iterator[SplitTuning]:
    """Yield ways to split the keys that the output projection can join."""
    seen = {spec.splits}
    for one in decode.SPLITS:
        other = replace(spec, split=one)
        if other.splits not in seen and _output(build, found, other) is not None:
            seen.add(other.splits)
            yield one


def attention_spec(
    build: PassBuilder, op: Attention, split: SplitTuning = AttentionSpec.split
) -> AttentionSpec:
    """Return what the attention of a layer computes."""
    return AttentionSpec(
        heads=op.heads,
        cache=build.cache.spec,
        scale=op.scale,
        window=op.window or 0,
        softcap=op.softcap or 0.0,
        split=split,
    )


def _transform(build: PassBuilder, found: Projections) -> HeadTransform:
    """Return what a layer does to queries and keys before attention."""
    made = HeadTransform()
    if found.ropes is not None:
        table = found.ropes[0].table
        pairs = build.model.graph.ropes[table].rotary_dim // 2
        made = replace(made, pairs=pairs, table=build.model.ropes[table])
    if found.head_norms is not None:
        norm = found.head_norms[0]
        gains = build.model.weights.joined([one.weight.name for one in found.head_norms])
        made = replace(made, gains=gains, eps=norm.eps, offset=float(norm.unit_offset))
    return made


def _emit_attention(
    build: PassBuilder,
    found: Projections,
    spec: AttentionSpec,
    projected: BufferSlice,
    depends: tuple[AnyTuningKey, ...],
) -> tuple[BufferSlice, BufferSlice]:
    """Emit the attention of the rows of a pass; its partial results and their statistics."""
    rows = build.ctx.max_rows
    sums = build.workspace.named("attention sums", spec.sums_bytes(rows))
    stats = build.workspace.named("attention stats", spec.stats_bytes(rows))
    made = decode.attention_decode(
        build.ctx,
        projected,
        build.cache.layers[found.attention.layer],
        (sums, stats),
        spec=spec,
        transform=_transform(build, found),
        label=f"layer {found.attention.layer} attention",
        tuning_keys=depends,
    )
    build.emit(made, FUSED)
    return sums, stats


def serve_placed_attention(build: PassBuilder, found: Projections) -> bool:
    """Serve norms, rope, cache and attention of projections that have been emitted already.

    Returns:
        False where another way has to serve them; then nothing has been emitted.
    """
    op = found.attention
    if placing.refusal(build.cache.spec) is not None:
        return False
    made = tuple(one.out for one in found.linears)
    q, k, v = (build.values.get(name) for name in made)
    phases = placing.norm_rope_store(
        build.ctx,
        (q, k, v),
        build.cache.layers[op.layer],
        heads=op.heads,
        cache=build.cache.spec,
        transform=_transform(build, found),
        label=f"{op.out}.place",
    )
    build.emit(phases, PLACED)
    for old, new in zip(made, (op.q, op.k, op.v), strict=True):
        if old != new:
            build.values.rename(old, new)
    attend(build, op)
    return True


def lower_attention(build: PassBuilder, op: Attention) -> None:
    """Emit the store of keys and values, then attention to all that the cache holds."""
    made = kv_store(
        build.ctx,
        build.values.get(op.k),
        build.values.get(op.v),
        build.cache.layers[op.layer],
        cache=build.cache.spec,
        label=f"{op.out}.store",
    )
    build.emit(made)
    attend(build, op)


def attend(build: PassBuilder, op: Attention) -> None:
    """Emit attention to all that the cache holds, the pass's own keys included."""
    spec = attention_spec(build, op)
    request = AttentionRequest(spec, build.ctx, build.model.max_binding)
    chosen = choose_attention(request, build.model.preferences)
    which = chosen.candidate.kernel
    splits = which is AttentionKernel.SPLIT_KV
    depends: tuple[AnyTuningKey, ...] = ()
    if splits:
        key = f"softmax split_kv.{spec.shape}, {build.ctx.max_rows} rows"
        split = build.ctx.tuning_key(key, spec.split, _general_splits(request))
        spec, depends = replace(spec, split=split.used), (split,)
    size = scratch_size(spec, build.ctx.max_rows) if splits else 0
    made = attention(
        build.ctx,
        build.values.get(op.q),
        build.cache.layers[op.layer],
        build.values.take(op.out, op.heads * op.head_dim),
        spec=spec,
        which=which,
        scratch=build.workspace.named(f"split.{size}", size) if splits else None,
        label=op.out,
        tuning_keys=depends,
    )
    build.emit(made, chosen.reason)
    build.values.read(op.q, op.k, op.v)


def _general_splits(request: AttentionRequest) -> Iterator[SplitTuning]:
    """Yield ways to split the keys whose scratch can be bound."""
    for one in SPLITS:
        size = scratch_size(replace(request.spec, split=one), request.ctx.max_rows)
        if size <= request.max_binding:
            yield one
