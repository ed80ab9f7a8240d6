"""Tests of fused decode attention against the separate ops in torch."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np
import pytest
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import CacheShape
from rdrr_runtime.phases.attention.attention_decode import (
    HeadForm,
    RoundedHeads,
    attention_decode,
    refusal,
    rounding_refusal,
)
from rdrr_runtime.phases.attention.attention_decode_tuning import (
    SHORT_SPLIT,
    SPLIT,
    DecodeTuning,
)
from rdrr_runtime.phases.attention.head_transform import HeadTransform, QueryScale
from rdrr_runtime.phases.attention.spec import AttentionSpec, SplitTuning
from rdrr_runtime.phases.cache.kv_cache import KvSpec, LayerCache
from rdrr_runtime.phases.products.fusion import AttentionSplits
from rdrr_runtime.phases.products.quantize_small_batch import (
    quantize_small_batch,
    small_batch_bytes,
)
from rdrr_runtime.reference import ops
from support.comparison import relative_error
from support.gpu import F32, Bench, cache_in_q8_0, normal

CONTEXT = 640
LONG = 2304  # a context whose splits are longer than their minimum
POISON = 60000.0  # fills slots that must not be read; within the range of f16


def stored(bench: Bench, values: np.ndarray, dtype: str) -> BufferSlice:
    if dtype == "q8_0":
        return bench.upload(cache_in_q8_0(values)[0])
    return bench.upload(values.astype(np.float16) if dtype == "f16" else values)


def combined(parts: np.ndarray, stats: np.ndarray) -> np.ndarray:
    """Combine the partial results of the splits, as the output projection does."""
    has_keys = stats[..., 1] > 0
    factor = np.where(has_keys, np.exp(stats[..., 0] - stats[..., 0].max(1, keepdims=True)), 0.0)
    denominator = (factor * np.where(has_keys, stats[..., 1], 0.0)).sum(1)
    sums = np.where(has_keys[..., None], parts, 0.0) * factor[..., None]
    return sums.sum(1) / denominator[:, None]


TWO = DecodeTuning(128, 2)


@dataclass(frozen=True)
class Case:
    """Shape and options of a layer; values are random."""

    head_dim: int
    heads: int
    kv_heads: int
    dtype: str
    base: int
    pairs: int
    window: int = 0
    softcap: float = 0.0
    context: int = CONTEXT
    normed: bool = False
    interleaved: bool = False
    query: QueryScale | None = None
    sinks: bool = False
    chunk: int = 0
    form: HeadForm = HeadForm()  # noqa: RUF009
    split: SplitTuning = SPLIT
    tuning: DecodeTuning | None = None


CASES = [
    Case(256, 4, 1, "f16", 300, 128, normed=True, split=SHORT_SPLIT),
    Case(256, 4, 1, "f32", 127, 64, sinks=True, tuning=DecodeTuning(128, 1)),
    Case(256, 4, 1, "f32", 300, 128, normed=True, tuning=DecodeTuning(256, 2)),
    Case(256, 4, 1, "q8_0", CONTEXT - 20, 64, normed=True, tuning=DecodeTuning(128, 4)),
    Case(64, 8, 2, "q8_0", 64, 32, window=100, tuning=TWO),
    Case(64, 8, 2, "f32", 63, 16, normed=True, tuning=DecodeTuning(128, 4)),
    Case(64, 8, 2, "f32", 63, 16, form=HeadForm(gated=True), tuning=TWO),
    Case(128, 6, 2, "f16", 300, 64, softcap=5.0, tuning=DecodeTuning(256, 3)),
    Case(64, 32, 2, "f32", 300, 32, normed=True),
    Case(64, 8, 2, "f32", 400, 32, normed=True, form=HeadForm(norm_spans_heads=True), tuning=TWO),
    Case(128, 8, 1, "f32", 300, 32, normed=True, form=HeadForm(values_normed=True), tuning=TWO),
    Case(64, 8, 2, "f32", 300, 32, normed=True, form=HeadForm(shares_keys=True), tuning=TWO),
    Case(64, 8, 2, "f16", CONTEXT - 20, 32, split=SplitTuning(256, 16)),
    Case(64, 8, 2, "f32", 127, 32, normed=True, window=100, split=SplitTuning(128, 16)),
    Case(128, 4, 1, "f32", 300, 64, sinks=True, split=SplitTuning(512, 2)),
    Case(64, 10, 2, "f32", 63, 32, sinks=True),  # 5 heads, which teams share as if they were 8
    Case(64, 14, 2, "f16", 300, 32, softcap=5.0),
    Case(16, 4, 2, "f32", 100, 8, normed=True),  # fewer words of a key than threads of a team
    Case(512, 4, 1, "f32", 200, 64, tuning=DecodeTuning(128, 4)),
    Case(64, 8, 2, "f32", 399, 32, chunk=100),
    Case(64, 8, 2, "f32", 400, 32, chunk=100),
    Case(64, 8, 2, "f32", 63, 16, sinks=True),
    Case(64, 8, 2, "f32", 63, 16, normed=True, form=HeadForm(gated=True)),
    Case(256, 4, 1, "q8_0", CONTEXT - 20, 32, normed=True, form=HeadForm(gated=True)),
    Case(64, 8, 2, "f32", 63, 16, normed=True, form=HeadForm(norm_after_rope=True)),
    Case(80, 3, 3, "f16", 127, 20, normed=True, form=HeadForm(norm_after_rope=True)),
    Case(64, 8, 2, "f32", 400, 32, normed=True, form=HeadForm(norm_spans_heads=True)),
    Case(64, 6, 3, "q8_0", 63, 0, normed=True, form=HeadForm(norm_spans_heads=True)),
    Case(128, 8, 1, "f32", 300, 32, normed=True, form=HeadForm(values_normed=True)),
    Case(64, 4, 2, "q8_0", 31, 32, normed=True, form=HeadForm(values_normed=True)),
    Case(64, 8, 2, "f32", 300, 32, normed=True, form=HeadForm(shares_keys=True)),
    Case(64, 4, 4, "f16", 9, 16, form=HeadForm(shares_keys=True)),
    Case(64, 8, 1, "f16", LONG - 20, 32, context=LONG, window=100, sinks=True),
    Case(128, 4, 1, "f32", CONTEXT - 20, 0, normed=True, sinks=True),
    Case(64, 8, 2, "f16", 0, 32),
    Case(64, 8, 2, "f32", 63, 16, normed=True),
    Case(64, 8, 2, "q8_0", 64, 32, window=100),
    Case(64, 8, 2, "q8_0", 0, 0, softcap=5.0, normed=True),
    Case(64, 8, 1, "f32", 127, 32, window=100, softcap=5.0, normed=True),
    Case(64, 8, 2, "q8_0", LONG - 20, 32, context=LONG, normed=True),
    Case(80, 3, 3, "f16", 127, 20, window=100),
    Case(80, 8, 1, "f32", 300, 40),  # threads load vectors of several heads, at different elements
    Case(80, 3, 3, "f32", CONTEXT - 20, 40, softcap=5.0, normed=True, interleaved=True),
    Case(32, 4, 2, "f32", 100, 6, normed=True, interleaved=True),
    Case(64, 8, 1, "f32", 63, 32, normed=True, tuning=DecodeTuning(128, 8)),  # two words a thread
    Case(80, 8, 1, "f16", 63, 40, normed=True, tuning=DecodeTuning(128, 8)),
    Case(128, 4, 1, "f32", CONTEXT - 20, 64),
    Case(128, 4, 1, "f32", CONTEXT - 20, 32, interleaved=True, query=QueryScale(0.5, 7, 1)),
    Case(128, 4, 1, "f16", 63, 0, window=100, normed=True),
    Case(128, 4, 1, "f32", LONG - 20, 64, window=100, context=LONG, normed=True),
    Case(256, 2, 2, "f16", CONTEXT - 20, 128, softcap=5.0),
    Case(256, 2, 2, "f32", 0, 64, normed=True),
    Case(256, 2, 2, "q8_0", CONTEXT - 20, 128, window=100, normed=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_combined_splits_equal_attention(
    any_bench: Bench, rng: np.random.Generator, case: Case
) -> None:
    bench, head_dim, base, pairs = any_bench, case.head_dim, case.base, case.pairs
    heads, kv_heads, dtype, context = case.heads, case.kv_heads, case.dtype, case.context
    ctx = bench.context(1, base=base, positions=[base + 7])
    cache = KvSpec(kv_heads, head_dim, context, dtype)
    spec = AttentionSpec(heads, cache, 0.3, case.window, case.softcap, case.split)
    sinks = 2 * normal(rng, heads)
    spec = replace(spec, chunk=case.chunk)
    if case.sinks:
        spec = replace(spec, sinks=bench.upload(sinks))
    rotation = HeadTransform(pairs, interleaved=case.interleaved)
    assert refusal(ctx, spec, rotation, normed=case.normed) is None
    projected = normal(rng, heads + 2 * kv_heads, head_dim)
    angles = rng.uniform(0, 6.28, (context + 8, pairs))
    table = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    keys, values = (normal(rng, kv_heads, context, head_dim) for _ in range(2))
    keys[:, base:], values[:, base:] = POISON, POISON
    form = case.form
    gains = 0.1 * normal(rng, heads + kv_heads if form.norm_spans_heads else 2, head_dim)
    if form.shares_keys:  # another layer has stored the new key and value
        keys[:, base], values[:, base] = normal(rng, 2, kv_heads, head_dim)
        projected = projected[:heads]
    transform = HeadTransform(
        pairs,
        bench.upload(table) if pairs else None,
        bench.upload(gains) if case.normed else None,
        eps=1e-5,
        offset=1.0,
        interleaved=case.interleaved,
        query=case.query,
    )
    caches = LayerCache(stored(bench, keys, dtype), stored(bench, values, dtype))
    partial = (
        bench.poisoned(heads, spec.splits, head_dim),
        bench.poisoned(heads, spec.splits, 2),
    )
    held = projected
    if form.gated:  # a gate follows each query
        gates = np.full((heads, head_dim), POISON, np.float32)
        queries = np.stack([projected[:heads], gates], 1).reshape(2 * heads, head_dim)
        held = np.concatenate([queries, projected[heads:]])
    phases = attention_decode(
        ctx,
        bench.upload(held),
        caches,
        partial,
        spec=spec,
        transform=transform,
        form=form,
        label="attention",
        tuning=case.tuning,
    )
    bench.run(phases, 1)
    output = combined(
        bench.download(partial[0], heads, spec.splits, head_dim).astype(np.float64),
        bench.download(partial[1], heads, spec.splits, 2).astype(np.float64),
    )

    q, k, v = (
        torch.from_numpy(word).unsqueeze(0)
        for word in np.split(projected, [heads, heads + kv_heads])
    )

    def normed(x: torch.Tensor, first: int) -> torch.Tensor:
        if not case.normed:
            return x
        if not form.norm_spans_heads:
            return ops.rms_norm(x, torch.from_numpy(gains[min(first, 1)]), 1e-5, 1.0)
        gain = torch.from_numpy(gains[first : first + x.shape[1]].ravel())
        return ops.rms_norm(x.flatten(1), gain, 1e-5, 1.0).view_as(x)

    at, angles_of = torch.tensor([base + 7]), torch.from_numpy(table)
    placed = []
    for x, first in ((q, 0), (k, heads))[: 1 if form.shares_keys else 2]:
        x = x if form.norm_after_rope else normed(x, first)
        x = ops.rope(x, at, angles_of, interleaved=case.interleaved)
        placed.append(normed(x, first) if form.norm_after_rope else x)
    q = placed[0]
    if case.query is not None:
        q = ops.position_scale(q.flatten(1), at, *astuple(case.query)).view_as(q)
    if form.values_normed:
        v = ops.rms_norm(v, torch.ones(head_dim), 1e-5, 0.0)
    if not form.shares_keys:
        keys[:, base], values[:, base] = placed[1][0].numpy(), v[0].numpy()
    if dtype == "f16":
        keys, values = (x.astype(np.float16).astype(np.float32) for x in (keys, values))
    if dtype == "q8_0":
        keys, values = (cache_in_q8_0(x)[1] for x in (keys, values))
    expected = ops.attention(
        q,
        torch.from_numpy(keys[:, : base + 1]),
        torch.from_numpy(values[:, : base + 1]),
        0.3,
        base=base,
        window=case.window,
        softcap=case.softcap,
        sinks=torch.from_numpy(sinks) if case.sinks else None,
        chunk=case.chunk,
    )
    # A rounding difference in f32 may change how the new key is rounded to f16 or to a code, so
    # these types have a larger tolerance.
    tolerance = {"f32": 1e-4, "f16": 2e-3, "q8_0": 1e-2}[dtype]
    assert relative_error(output, expected[0].numpy()) < tolerance


@pytest.mark.parametrize("broken", ["key", "value"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_a_new_key_or_value_that_is_nan_stays_visible_in_later_passes(
    any_bench: Bench, rng, dtype: str, broken: str
) -> None:
    bench = any_bench
    spec = AttentionSpec(8, KvSpec.make(CacheShape(2, 64), CONTEXT, dtype), 0.3)
    caches = LayerCache(*(bench.arena.empty("cache", spec.cache.size) for _ in range(2)))
    wanted = {"spec": spec, "transform": HeadTransform(), "label": "attention"}

    def attended(base: int, projected: F32) -> F32:
        parts, stats = bench.poisoned(8, spec.splits, 64), bench.poisoned(8, spec.splits, 2)
        operands = (bench.upload(projected), caches, (parts, stats))
        bench.run(attention_decode(bench.context(1, base=base), *operands, **wanted), 1)
        return bench.download(parts, 8, spec.splits, 64)[:, 0]

    sound, damaged = normal(rng, 12, 64), normal(rng, 12, 64)
    damaged[8 if broken == "key" else 10, 9] = np.nan  # of the first key-value head
    assert np.isfinite(attended(0, sound)).all()
    attended(1, damaged)
    is_nan = np.isnan(attended(2, sound)).any(axis=1)
    assert is_nan.tolist() == [head < 4 for head in range(8)]


def test_every_block_of_a_new_key_and_value_is_stored_in_q8_0_with_its_own_scale(
    any_bench: Bench, rng
) -> None:
    bench = any_bench
    spec = AttentionSpec(8, KvSpec.make(CacheShape(2, 64), CONTEXT, "q8_0"), 0.3)
    caches = LayerCache(*(bench.arena.empty("cache", spec.cache.size) for _ in range(2)))
    parts, stats = bench.poisoned(8, spec.splits, 64), bench.poisoned(8, spec.splits, 2)
    projected = normal(rng, 12, 64) * np.repeat(np.float32([1, 8]), 32)
    operands = (bench.upload(projected), caches, (parts, stats))
    wanted = {"spec": spec, "transform": HeadTransform(), "label": "attention"}
    bench.run(attention_decode(bench.context(1, base=5), *operands, **wanted), 1)
    for new, buffer in ((projected[8:10], caches.keys), (projected[10:], caches.values)):
        raw = bench.device.read(buffer)[: spec.cache.size]
        scales = raw[spec.cache.elements :].view("<f2").reshape(2, CONTEXT, 2)[:, 5]
        largest = np.abs(new.reshape(2, 2, 32)).max(axis=2)
        np.testing.assert_allclose(scales, largest / 127, rtol=1e-3)


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_a_query_that_is_nan_stays_visible(any_bench: Bench, rng, cap: float) -> None:
    bench, spec = any_bench, AttentionSpec(8, KvSpec(2, 64, CONTEXT, "f32"), 0.3, softcap=cap)
    projected = normal(rng, 12, 64)
    projected[3, 9] = np.nan
    caches = LayerCache(*(bench.upload(normal(rng, 2, CONTEXT, 64)) for _ in range(2)))
    parts, stats = bench.poisoned(8, spec.splits, 64), bench.poisoned(8, spec.splits, 2)
    operands = (bench.upload(projected), caches, (parts, stats))
    wanted = {"spec": spec, "transform": HeadTransform(), "label": "attention"}
    bench.run(attention_decode(bench.context(1, base=40), *operands, **wanted), 1)
    result = bench.download(parts, 8, spec.splits, 64)[:, 0]
    assert np.isnan(result).all(axis=1).tolist() == [head == 3 for head in range(8)]
    assert np.isnan(bench.download(stats, 8, spec.splits, 2)[3, 0, 1])


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_a_batch_gives_the_same_results_as_each_sequence_alone(
    any_bench, rng, normed, window
) -> None:
    bench, heads, kv_heads, head_dim, context, pairs = any_bench, 6, 2, 64, 200, 32
    sequences, slots = [2, 0, 3], [63, 150, 64]
    rows = len(slots)
    cache = KvSpec(kv_heads, head_dim, context, "f16", sequences=4)
    # Splits of a batch share the keys left over, those of a row alone only if they are longer.
    spec = AttentionSpec(heads, cache, 0.3, window, split=SplitTuning(65, 3))
    projected = normal(rng, rows, heads + 2 * kv_heads, head_dim)
    angles = rng.uniform(0, 6.28, (context, pairs))
    table = bench.upload(np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32))
    gains = bench.upload(0.1 * normal(rng, 2, head_dim)) if normed else None
    transform = HeadTransform(pairs, table, gains, eps=1e-5)
    held = [normal(rng, 4, kv_heads, context, head_dim) for _ in range(2)]

    def run(ctx, spec, projected, caches, count) -> tuple[np.ndarray, ...]:
        partial = (
            bench.poisoned(count, heads, spec.splits, head_dim),
            bench.poisoned(count, heads, spec.splits, 2),
        )
        phases = attention_decode(
            ctx,
            bench.upload(projected),
            LayerCache(*caches),
            partial,
            spec=spec,
            transform=transform,
            label="t",
        )
        bench.run(phases, count)
        shape = count, heads, spec.splits, head_dim
        read_back = [bench.device.read(cache) for cache in caches]
        sums, stats = partial
        return bench.download(sums, *shape), bench.download(stats, *shape[:3], 2), *read_back

    ctx = bench.context(rows, slots=slots, sequences=sequences, max_rows=rows + 2)
    assert refusal(ctx, spec) is None
    result = run(ctx, spec, projected, tuple(stored(bench, array, "f16") for array in held), rows)
    single = replace(spec, cache=replace(cache, sequences=1))
    for row, (sequence, slot) in enumerate(zip(sequences, slots, strict=True)):
        layer = tuple(stored(bench, array[sequence], "f16") for array in held)
        alone = bench.context(1, base=slot)
        sums, stats, *caches = run(alone, single, projected[row], layer, 1)
        assert np.array_equal(result[0][row], sums[0], equal_nan=True)
        assert np.array_equal(result[1][row], stats[0], equal_nan=True)
        for ours, read_back in zip(result[2:], caches, strict=True):
            assert np.array_equal(ours.reshape(4, -1)[sequence], read_back)
    untouched = stored(bench, held[0], "f16")
    first = bench.device.read(untouched).reshape(4, -1)[1]
    assert np.array_equal(result[2].reshape(4, -1)[1], first)  # a sequence without a row


@pytest.mark.parametrize(
    ("rounded", "heads", "tuning"),
    [
        ("int8", 6, None),
        ("int8 of 16", 6, DecodeTuning(128, 1)),
        ("f16", 6, DecodeTuning(128, 1)),
        ("f16", 8, DecodeTuning(256, 4)),
    ],
)
def test_the_result_of_a_batch_is_rounded_as_a_phase_behind_attention_would(
    any_bench, rng, rounded, heads, tuning
) -> None:
    bench, kv_heads, head_dim, sequences, slots = any_bench, 2, 64, [2, 0, 3], [63, 150, 64]
    rows, k, halves = len(slots), heads * head_dim, rounded == "int8 of 16"
    cache = KvSpec(kv_heads, head_dim, 200, "f16", sequences=4)
    spec = AttentionSpec(heads, cache, 0.3, split=SplitTuning(64, 1))
    assert rounding_refusal(spec, rounded) is None
    assert rounding_refusal(replace(spec, split=SplitTuning(64, 2)), rounded) is not None
    ctx = bench.context(rows, slots=slots, sequences=sequences)
    projected = bench.upload(normal(rng, rows, heads + 2 * kv_heads, head_dim))
    held = [normal(rng, 4, kv_heads, 200, head_dim) for _ in range(2)]
    caches = LayerCache(*(stored(bench, array, "f16") for array in held))
    sums, stats = bench.poisoned(rows, k), bench.poisoned(rows, heads, 2)
    y, other, factors = (bench.poisoned(small_batch_bytes(rows, k)) for _ in range(3))
    heads_of = RoundedHeads(other, factors if rounded == "f16" else None, halves)
    for result in ((sums, stats), heads_of):
        phases = attention_decode(
            ctx,
            projected,
            caches,
            result,
            spec=spec,
            transform=HeadTransform(),
            tuning=tuning,
            label="t",
        )
        bench.run(phases, rows)
    if rounded == "f16":
        parts = bench.download(sums, rows, heads, head_dim)
        expected = parts / bench.download(stats, rows, heads, 2)[..., 1:]
        got = bench.download(other, rows, k // 2).view(np.float16).reshape(expected.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-6)
        assert bench.download(factors, rows).tolist() == [1.0] * rows
        return
    before = AttentionSplits(stats, 1, head_dim)
    bench.run(
        quantize_small_batch(ctx, sums, y, k=k, before=before, halves=halves, label="t"), rows
    )
    expected, got = (bench.download(x, rows, 5 * k // 16).view(np.uint32) for x in (y, other))
    np.testing.assert_array_equal(got, expected)


def test_results_that_need_other_phases_or_may_overflow_are_not_rounded_by_attention() -> None:
    spec = AttentionSpec(6, KvSpec(2, 64, 200, "f32"), 0.3, split=SplitTuning(64, 1))
    assert "too large" in str(rounding_refusal(spec, "f16"))
    assert rounding_refusal(spec, "int8") is None
    odd = replace(spec, cache=KvSpec(2, 48, 200, "f32"))
    assert "whole units" in str(rounding_refusal(odd, "int8"))


@pytest.mark.parametrize(
    ("keys", "split", "rows", "lengths"),
    [
        (64, SPLIT, 1, [64]),
        (65, SPLIT, 1, [64, 1]),  # no longer than a block, so that it takes no second one
        (127, SplitTuning(128, 16), 1, [127]),
        (255, SplitTuning(128, 16), 1, [255]),
        (256, SplitTuning(128, 16), 1, [128, 128]),
        (386, SplitTuning(128, 16), 1, [129, 129, 128]),
        (640, SplitTuning(128, 2), 1, [320, 320]),
        (65, SPLIT, 2, [65]),
        (131, SPLIT, 2, [66, 65]),
    ],
)
def test_splits_of_several_blocks_and_of_batches_share_the_keys_left_over(
    bench, keys, split, rows, lengths
) -> None:
    heads, kv_heads, head_dim = 4, 2, 64
    ctx = bench.context(1, base=keys - 1, max_rows=rows, sequences=[0] if rows > 1 else None)
    spec = AttentionSpec(heads, KvSpec(kv_heads, head_dim, CONTEXT, "f32"), 1.0, split=split)
    zeros = np.zeros((kv_heads, CONTEXT, head_dim), np.float32)
    caches = LayerCache(bench.upload(zeros), bench.upload(zeros))
    projected = bench.upload(np.zeros((heads + 2 * kv_heads, head_dim), np.float32))
    partial = bench.poisoned(heads, spec.splits, head_dim), bench.poisoned(heads, spec.splits, 2)
    transform = HeadTransform(0, None, None, eps=1e-5)
    bench.run(
        attention_decode(
            ctx, projected, caches, partial, spec=spec, transform=transform, label="t"
        ),
        1,
    )
    # Scores of zero have a weight of one, so that the sum of the weights is the number of keys.
    result = bench.download(partial[1], heads, spec.splits, 2)[..., 1]
    assert [[int(length) for length in row if length] for row in result] == [lengths] * heads


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("heads", [2, 3, 4])
def test_the_maximum_of_a_split_is_the_largest_of_its_scores(any_bench, heads, sign) -> None:
    # Negative scores are less than those of the heads that pad a group to a power of two.
    bench, spec = any_bench, AttentionSpec(heads, KvSpec(1, 64, CONTEXT, "f32"), 0.5, split=SPLIT)
    projected = np.ones((heads + 2, 64), np.float32)
    projected[:heads] = sign
    caches = LayerCache(*(bench.upload(np.ones((1, CONTEXT, 64), np.float32)) for _ in range(2)))
    parts, stats = bench.poisoned(heads, spec.splits, 64), bench.poisoned(heads, spec.splits, 2)
    operands = (bench.upload(projected), caches, (parts, stats))
    wanted = {"transform": HeadTransform(), "tuning": DecodeTuning(128, heads), "label": "t"}
    bench.run(attention_decode(bench.context(1, base=99), *operands, spec=spec, **wanted), 1)
    result = bench.download(stats, heads, spec.splits, 2)[:, :2]
    assert result.tolist() == [[[32 * sign, 64], [32 * sign, 36]]] * heads
