"""Lowering of attention: fused with the ops around it, or as a cache store and attention alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_manifests.graph.ops import Attention, Linear

from rdrr_runtime.compile.choice.attention import AttentionRequest, choose_attention
from rdrr_runtime.compile.choice.decision import Reason
from rdrr_runtime.compile.choice.products import Family
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.inputs import source_of
from rdrr_runtime.compile.lowering.products import (
    Served,
    combines_splits,
    emit_branch,
    emit_product,
    fused_product,
    small_batch_rows,
)
from rdrr_runtime.compile.pass_spec import Slots
from rdrr_runtime.compile.patterns.attention import AttentionBlock, Projections
from rdrr_runtime.compile.patterns.layers import may_compute
from rdrr_runtime.phases.attention import attention_decode as decode
from rdrr_runtime.phases.attention import norm_rope_store as placing
from rdrr_runtime.phases.attention.attention import (
    SPLITS,
    TILE_ROWS,
    AttentionKernel,
    attention,
    partial_buffers,
)
from rdrr_runtime.phases.attention.attention_decode_tuning import DECODE_SPLITS, default_split
from rdrr_runtime.phases.attention.attention_tiled import with_splits
from rdrr_runtime.phases.attention.head_transform import NO_TRANSFORM, HeadTransform, QueryScale
from rdrr_runtime.phases.attention.spec import AttentionSpec, DistanceBias, SplitTuning
from rdrr_runtime.phases.cache.kv_store import kv_store
from rdrr_runtime.phases.products.fusion import AttentionSplits, HeadGates, Input, Output

FUSED = Reason("attention fused with norms, rope and the cache (auto)")
NORM_ROPE_STORE = Reason("norms, rope and the cache in one phase (auto)")


def serve_attention_block(build: PassBuilder, pattern: AttentionBlock) -> int:
    """Emit a layer from its first norm to its output projection with fused kernels.

    One row takes 3 phases: the projections, attention, and the output projection, which also joins
    the partial results of the key splits. A batch takes two more, which quantize rows to int8.

    Returns:
        The number of ops; 0 if this is not possible, and then nothing has been emitted.
    """
    projections, linears = pattern.projections, pattern.projections.linears
    one_row = build.ctx.max_rows == 1
    cache = build.cache.specs[projections.attention.layer]
    split = default_split(build.ctx, cache, projections.attention.heads)
    spec = attention_spec(build, projections.attention, split)
    if build.ctx.grid is not None and one_row:
        # As many splits with a window as without: layers of both kinds share the output projection.
        spec = replace(spec, rows=cache.context)
    projected = fused_product(build, [build.matrix(linear.weight) for linear in linears])
    out = _output(build, pattern, spec)
    rotation, normed = _rotation(build, projections), projections.head_norms is not None
    norm, readers = projections.norm, len(linears)
    alone = norm is None or build.body.readers[norm.out] == readers
    usual = projections.is_usual and alone
    same_biases = len({linear.bias is None for linear in linears}) == 1
    can_run = (
        build.model.preferences.hint("attentionDecode") is None
        and (may_compute(build.body, norm, readers) if one_row else usual)
        and (one_row or build.spec.slots is Slots.DISTINCT)
        and decode.refusal(build.ctx, spec, rotation, normed=normed) is None
    )
    if projected is None or out is None or not same_biases or not can_run:
        return 0
    depends: tuple[AnyTuningKey, ...] = ()
    if one_row:
        key = f"softmax attention_decode.{spec.shape}"
        tuned = build.ctx.tuning_key(key, spec.split, _splits(build, pattern, spec))
        spec, depends = replace(spec, split=tuned.used), (tuned,)
    elif spec.cache.head_dim % 16:
        return 0
    _emit_block(build, pattern, spec, projected, out, depends)
    return pattern.count


def _output(build: PassBuilder, pattern: AttentionBlock, spec: AttentionSpec) -> Served | None:
    """Return the output projection if it can join the partial results of the key splits."""
    op = pattern.output.op
    assert isinstance(op, Linear), "the pattern's output is a linear"
    return fused_product(build, (build.matrix(op.weight),), partials=spec.heads * spec.splits)


def _emit_block(
    build: PassBuilder,
    pattern: AttentionBlock,
    spec: AttentionSpec,
    projected: Served,
    out: Served,
    depends: tuple[AnyTuningKey, ...],
) -> None:
    projections = pattern.projections
    norm, linears = projections.norm, projections.linears
    layer = f"layer {projections.attention.layer}"
    rows = build.ctx.max_rows
    size = build.ctx.value_bytes * rows * sum(weight.n for weight in projected.product.weights)
    y = build.workspace.named(f"projected.{rows}", size)
    output = Output((y,), bias=build.concatenated_bias(linears))
    source, x = source_of(build, norm, linears[0].x, projected.product.weights, output)
    emit_product(build, projected, source, output, f"{layer} qkv")
    build.mark_source_read(norm, x, len(linears))
    size = spec.cache.head_dim
    rounded = None if rows == 1 or pattern.is_gated else _rounded(build, spec, out, layer)
    if rounded is not None:
        heads, source = rounded
        _emit_attention(build, pattern.projections, spec, y, heads, depends)
        emit_branch(build, out, pattern.output, source, depends)
        return
    sums = build.workspace.named("attention sums", spec.sums_bytes(rows))
    stats = build.workspace.named("attention stats", spec.stats_bytes(rows))
    _emit_attention(build, pattern.projections, spec, y, (sums, stats), depends)
    gates = HeadGates(y, "sigmoid", 2 * size, size) if pattern.is_gated else None
    joins = AttentionSplits(stats, spec.splits, size, gates)
    source = Input(sums, joins, name=f"{layer} attention")
    emit_branch(build, out, pattern.output, source, depends)


def _rounded(
    build: PassBuilder, spec: AttentionSpec, out: Served, layer: str
) -> tuple[decode.RoundedHeads, Input] | None:
    """Return where attention leaves its result rounded for the output projection, and its input.

    Returns:
        None if attention leaves partial results, which a further phase combines and rounds.
    """
    name = f"{layer} attention"
    if decode.rounding_refusal(spec, out.rounding) is not None:
        return None
    if out.family is Family.SMALL_BATCH:
        x = small_batch_rows(build, "int8 rows", out.k)
        return decode.RoundedHeads(x, halves=out.halves), Input(x, int8=True)
    if out.family is Family.MATRICES:
        rows = build.half_target(name, out.k)
        return decode.RoundedHeads(rows.y, rows.factors), Input(rows.y, name=name)
    return None


def _splits(
    build: PassBuilder, pattern: AttentionBlock, spec: AttentionSpec
) -> Iterator[SplitTuning]:
    """Yield the ways to split the keys whose partial results the output projection can join."""
    seen = {spec.splits}
    for split in DECODE_SPLITS:
        other = replace(spec, split=split)
        if other.splits not in seen and _output(build, pattern, other) is not None:
            seen.add(other.splits)
            yield split


def attention_spec(
    build: PassBuilder, op: Attention, split: SplitTuning = AttentionSpec.split
) -> AttentionSpec:
    """Return the specification of a layer's attention."""
    return AttentionSpec(
        heads=op.heads,
        cache=build.cache.specs[op.layer],
        scale=op.scale,
        window=op.window or 0,
        softcap=op.softcap or 0.0,
        split=split,
        sinks=None if op.sinks is None else build.vector(op.sinks),
        chunk=op.chunk or 0,
        causal=op.causal,
        segments=None if op.causal else build.ctx.state.segments,
        bias=_distance_bias(build, op),
        alibi=op.alibi or 0.0,
        images=_images_seen_whole(build, op),
    )


def _images_seen_whole(build: PassBuilder, op: Attention) -> int:
    """Return the first token of images whose rows attend to all of it; 0 if they do not."""
    images = build.model.images
    return images.first if images is not None and images.are_seen_whole(op.window) else 0


def _distance_bias(build: PassBuilder, op: Attention) -> DistanceBias | None:
    """Return the bias on the scores of an attention by distance, if it has one."""
    if op.bias is None:
        return None
    return DistanceBias.of(build.vector(op.bias), op.bias.shape[0], op.bias_distance)


def _rotation(build: PassBuilder, pattern: Projections) -> HeadTransform:
    """Return the rotation that a layer applies to queries and keys before attention."""
    if pattern.ropes is None:
        return NO_TRANSFORM
    rope = pattern.ropes[0]
    pairs = build.model.graph.ropes[rope.table].rotary_dim // 2
    table = build.model.ropes[rope.table]
    return HeadTransform(pairs=pairs, table=table, interleaved=rope.interleaved)


def _transform(build: PassBuilder, pattern: Projections) -> HeadTransform:
    """Return the norms and rotation that a layer applies to queries and keys before attention."""
    transform = _rotation(build, pattern)
    if pattern.head_norms is not None:
        norm = pattern.head_norms[0]
        names = [norm.weight.name for norm in pattern.head_norms if norm.weight is not None]
        names = names if pattern.spans_heads or len(names) == 2 else 2 * names
        gains = build.model.weights.concatenated(names)
        transform = replace(transform, gains=gains, eps=norm.eps, offset=float(norm.unit_offset))
    if pattern.query_scale is not None:
        op = pattern.query_scale
        transform = replace(transform, query=QueryScale(op.scale, op.length, op.offset))
    return transform


def _form(pattern: Projections) -> decode.HeadForm:
    """Return what is unusual about the heads of a layer."""
    return decode.HeadForm(
        gated=pattern.queries is not None,
        norm_after_rope=pattern.norm_after_rope,
        norm_spans_heads=pattern.spans_heads,
        values_normed=pattern.value_norm is not None,
        shares_keys=len(pattern.linears) == 1,
    )


def _emit_attention(
    build: PassBuilder,
    pattern: Projections,
    spec: AttentionSpec,
    projected: BufferSlice,
    result: tuple[BufferSlice, BufferSlice] | decode.RoundedHeads,
    depends: tuple[AnyTuningKey, ...],
) -> None:
    """Emit fused attention, whose result or partial results go to `result`."""
    phases = decode.attention_decode(
        build.ctx,
        projected,
        build.cache.layers[pattern.attention.layer],
        result,
        spec=spec,
        transform=_transform(build, pattern),
        label=f"layer {pattern.attention.layer} attention",
        form=_form(pattern),
        tuning_keys=depends,
    )
    build.emit(phases, FUSED)


def serve_attention_after_projections(build: PassBuilder, pattern: Projections) -> bool:
    """Emit norms, rope and cache store in one phase, then attention, after emitted projections.

    Returns:
        Whether it was possible; if not, nothing has been emitted.
    """
    op = pattern.attention
    if placing.refusal(build.cache.specs[op.layer]) is not None:
        return False
    names = tuple(linear.out for linear in pattern.linears)
    q, k, v = (build.values.get(name) for name in names)
    phases = placing.norm_rope_store(
        build.ctx,
        (q, k, v),
        build.cache.layers[op.layer],
        heads=op.heads,
        cache=build.cache.specs[op.layer],
        transform=_transform(build, pattern),
        label=f"{op.out}.place",
    )
    build.emit(phases, NORM_ROPE_STORE)
    for old, new in zip(names, (op.q, op.k, op.v), strict=True):
        if new is not None and old != new:
            build.values.rename(old, new)
    attend(build, op)
    return True


def lower_attention(build: PassBuilder, op: Attention) -> None:
    """Emit the store of keys and values, if there are any, then attention over the whole cache."""
    if op.k is not None and op.v is not None:
        phases = kv_store(
            build.ctx,
            build.values.get(op.k),
            build.values.get(op.v),
            build.cache.layers[op.layer],
            cache=build.cache.specs[op.layer],
            label=f"{op.out}.store",
        )
        build.emit(phases)
    attend(build, op)


def attend(build: PassBuilder, op: Attention) -> None:
    """Emit attention over the whole cache, including the keys of this pass."""
    rows = build.ctx.max_rows
    request = AttentionRequest(attention_spec(build, op), build.ctx, build.model.max_binding)
    chosen = choose_attention(request, build.model.preferences)
    which = chosen.candidate.kernel
    spec, depends = _with_splits(request, which)
    scratch: BufferSlice | None = None
    if which is AttentionKernel.SPLIT_KV or spec.splits > 1:
        size = spec.scratch_bytes(rows)
        scratch = build.workspace.named(f"split.{size}", size)
    out: BufferSlice | None = None
    if scratch is not None and _reader_combines(build, op):
        partial = partial_buffers(spec, rows, scratch, op.out)
        before = AttentionSplits(partial["stats"], spec.splits, op.head_dim)
        build.uncombined[op.out] = Input(partial["sums"], before, name=op.out)
    else:
        out = build.values.allocate(op.out, op.heads * op.head_dim)
    phases = attention(
        build.ctx,
        build.values.get(op.q),
        build.cache.layers[op.layer],
        out,
        spec=spec,
        which=which,
        scratch=scratch,
        label=op.out,
        tuning_keys=depends,
    )
    build.emit(phases, chosen.reason)
    build.values.mark_read(op.q, op.k, op.v)


def _with_splits(
    request: AttentionRequest, which: AttentionKernel
) -> tuple[AttentionSpec, tuple[AnyTuningKey, ...]]:
    """Return an attention with the splits of its keys, and the tuning keys that these depend on."""
    ctx, spec = request.ctx, request.spec
    if which is AttentionKernel.SPLIT_KV:
        key = f"softmax split_kv.{spec.shape}, {ctx.max_rows} rows"
        split = ctx.tuning_key(key, spec.split, _general_splits(request))
        return replace(spec, split=split.used), (split,)
    if which in TILE_ROWS:
        return with_splits(ctx, spec, TILE_ROWS[which], request.max_binding), ()
    return spec.unsplit, ()


def _reader_combines(build: PassBuilder, op: Attention) -> bool:
    """Return whether the op that reads an attention combines its partial results.

    It is a product of a small batch, which quantizes its input in a phase of its own anyway.
    """
    reader = build.body.at(build.body.last_reader[op.out])
    alone = build.body.readers[op.out] == 1 and build.model.may_fuse
    return alone and isinstance(reader, Linear) and combines_splits(build, reader, op.head_dim)


def _general_splits(request: AttentionRequest) -> Iterator[SplitTuning]:
    """Yield the ways to split the keys whose scratch buffer can be bound."""
    for split in SPLITS:
        size = replace(request.spec, split=split).scratch_bytes(request.ctx.max_rows)
        if size <= request.max_binding:
            yield split
