"""Tests of multi-head latent attention against keys and values that are expanded in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import DeviceError, FormatError, UsageError
from rdrr_format.layouts import Layout
from rdrr_manifests.graph import CacheShape
from rdrr_runtime.phases.attention.latent import LatentSpec, latent_store
from rdrr_runtime.phases.attention.latent_attention import latent_attention, latent_decode
from rdrr_runtime.phases.attention.latent_products import latent_queries, latent_values
from rdrr_runtime.phases.attention.spec import SplitTuning
from rdrr_runtime.phases.cache.kv_cache import KvSpec, LayerCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.products.fusion import AttentionSplits, Input
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.weights.packing import Uploader
from rdrr_runtime.reference import ops
from support.comparison import relative_error
from support.gpu import F32, TOLERANCE, Bench, cache_in_q8_0, normal, on_device, random_tensor

CONTEXT, EPS = 320, 1e-2
SIZES = LatentSpec(6, 24, 20, KvSpec(1, 96, CONTEXT, second_dim=32), interleaved=True, scale=0.3)
BLOCKS = replace(SIZES, heads=3, cache=KvSpec(1, 128, CONTEXT, second_dim=64), interleaved=False)
ONE, MANY = ([0], [299]), ([0] * 6, [297, 298, 299, 300, 301, 302])
MAPPED = ([2, 0, 1], [9, 0, 319])
STORED = {"f32": 1e-6, "f16": 1e-3, "q8_0": 1e-2}
"""Largest error of what is stored, relative to the largest value."""

BEYOND_RANGE = {"f16": (1e5,), "q8_0": (1e8,)}


def matrix(
    bench: Bench, rng: np.random.Generator, dtype: str, layout: Layout, shape: tuple[int, int]
) -> tuple[GpuWeight, F32]:
    raw, values = random_tensor(rng, dtype, layout, shape)
    weight = allocate_weight(bench.arena, DTYPES[dtype], layout, shape, "up")
    with bench.arena.temporary() as temporary, Uploader(bench.arena, temporary) as uploader:
        uploader.fill(weight, layout, shape, iter([raw]), "up")
    return weight, values


def uploaded(bench: Bench, values: F32, dtype: str) -> tuple[BufferSlice, F32]:
    """Return a cache on the device, and the values that it holds."""
    if dtype == "q8_0":
        raw, held = cache_in_q8_0(values)
        return bench.upload(raw), held
    kind = np.float16 if dtype == "f16" else np.float32
    return bench.upload(values.astype(kind)), values.astype(kind).astype(np.float32)


def downloaded(bench: Bench, buffer: BufferSlice, dtype: str, shape: tuple[int, ...]) -> F32:
    """Return the values that a cache on the device holds."""
    stored, count = bench.device.read(buffer), int(np.prod(shape))
    if dtype != "q8_0":
        kind = np.float16 if dtype == "f16" else np.float32
        return stored.view(kind)[:count].astype(np.float32).reshape(shape)
    codes = stored[:count].view(np.int8).astype(np.float32)
    scales = stored[count : count + count // 32 * 2].view("<f2").astype(np.float32)
    return (codes * scales.repeat(32)).reshape(shape)


def attended(
    bench: Bench,
    ctx: OpContext,
    queries: BufferSlice,
    layer: LayerCache,
    spec: LatentSpec,
    split: SplitTuning | None,
) -> tuple[Input, list[Phase]]:
    """Return the output of attention, and its phases; None does not split the keys."""
    if split is None:
        latents = bench.poisoned(ctx.max_rows, spec.heads, spec.latent)
        return Input(latents), latent_attention(ctx, queries, layer, latents, spec, label="t")
    attention = spec.attention(split=split)
    sums = bench.poisoned(attention.sums_bytes(ctx.max_rows) // 4)
    stats = bench.poisoned(attention.stats_bytes(ctx.max_rows) // 4)
    phases = latent_decode(ctx, queries, layer, (sums, stats), spec, attention, label="t")
    return Input(sums, AttentionSplits(stats, attention.splits, spec.latent)), phases


@pytest.mark.parametrize(
    ("kv", "dtype", "layout", "rows_of", "split"),
    [
        ("f32", "F32", Layout.ROW, ONE, SplitTuning(64, 4)),  # several rounds in a split
        ("f16", "Q4_K", Layout.ROW, MANY, None),
        ("q8_0", "Q6_K", Layout.ROW, MANY, None),
        ("q8_0", "F16", Layout.ROW, ONE, SplitTuning(16, 32)),  # and splits without keys
        ("f16", "Q4_K", Layout.COLUMN, MAPPED, SplitTuning(64, 4)),
        ("f32", "F16", Layout.ROW, MAPPED, None),
        ("f16", "F16", Layout.ROW, MAPPED, SplitTuning(400, 1)),
    ],
)
def test_latent_attention_equals_the_expanded_form(
    any_bench, rng, kv, dtype, layout, rows_of, split
):
    bench, (sequences, slots) = any_bench, rows_of
    spec, count, rows = BLOCKS if kv == "q8_0" else SIZES, max(sequences) + 1, len(slots)
    spec = replace(spec, cache=replace(spec.cache, dtype=kv, sequences=count))
    latent, rope, heads = spec.latent, spec.rope_dim, spec.heads
    up, matrices = matrix(
        bench, rng, dtype, layout, (heads * (spec.key_dim + spec.value_dim), latent)
    )
    # Random blocks are small; scaled scores and values make all terms count.
    spec = replace(spec, scale=spec.scale / float(np.abs(matrices).max()))
    q = normal(rng, rows, heads, spec.key_dim + rope)
    q[..., spec.key_dim :] *= np.abs(matrices).max()
    kv_rows, gain = normal(rng, rows, latent + rope), 1 + 0.1 * normal(rng, latent)
    angles = rng.uniform(0, 6.28, (CONTEXT, rope // 2))
    table = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    shapes = [(count, CONTEXT, latent), (count, CONTEXT, rope)]
    caches, held = zip(*(uploaded(bench, normal(rng, *form), kv) for form in shapes), strict=True)
    layer, table_on_gpu = LayerCache(*caches), bench.upload(table)
    ctx = bench.context(rows, slots=slots, sequences=sequences, positions=slots)
    ctx = replace(ctx, multi_sequence=count > 1)
    queries, out = (bench.poisoned(rows, heads, dim) for dim in (spec.query_dim, spec.value_dim))
    norm = bench.upload(gain), EPS
    source, attention = attended(bench, ctx, queries, layer, spec, split)
    phases = [
        *latent_store(ctx, bench.upload(kv_rows), layer, spec, norm, table_on_gpu, label="t"),
        *latent_queries(ctx, bench.upload(q), up, queries, spec, table_on_gpu, label="t"),
        *attention,
        *latent_values(ctx, source, up, out, spec, label="t"),
    ]
    bench.run(phases, rows)

    def rotated(x: F32) -> torch.Tensor:
        unrotated = torch.from_numpy(x).double()
        return ops.rope(
            unrotated, torch.tensor(slots), torch.from_numpy(table), interleaved=spec.interleaved
        )

    new = (
        ops.rms_norm(
            torch.from_numpy(kv_rows[:, :latent]).double(), torch.from_numpy(gain).double(), EPS
        ),
        rotated(kv_rows[:, None, latent:])[:, 0],
    )
    contents = [
        downloaded(bench, cache, kv, shape) for cache, shape in zip(caches, shapes, strict=True)
    ]
    for before, after, rows_stored in zip(held, contents, new, strict=True):
        assert relative_error(after[sequences, slots], rows_stored) < STORED[kv]
        expected_cache = before.copy()
        expected_cache[sequences, slots] = after[sequences, slots]
        assert np.array_equal(after, expected_cache)  # other slots are unchanged
    latent_query, rope_part = q[..., : spec.key_dim], rotated(q[..., spec.key_dim :])
    query = torch.cat([torch.from_numpy(latent_query).double(), rope_part], -1)
    parts = torch.from_numpy(matrices).double().reshape(heads, -1, latent)
    keys_of, values_of = parts.split((spec.key_dim, spec.value_dim), dim=1)
    wanted = []
    for row, (sequence, slot) in enumerate(zip(sequences, slots, strict=True)):
        c, k = (torch.from_numpy(content[sequence, : slot + 1]).double() for content in contents)
        keys = torch.cat([c @ keys_of.transpose(1, 2), k.expand(heads, -1, -1)], -1)
        values = c @ values_of.transpose(1, 2)
        wanted.append(ops.attention(query[row : row + 1], keys, values, spec.scale, base=slot))
    result = bench.download(out, rows, heads, spec.value_dim)
    assert relative_error(result, torch.cat(wanted)) < TOLERANCE


@pytest.mark.parametrize("kv", STORED)
@pytest.mark.parametrize("split", [None, SplitTuning(64, 4)], ids=["whole", "split"])
def test_a_query_or_latent_that_is_nan_stays_visible(any_bench, rng, split, kv):
    bench, spec = any_bench, replace(BLOCKS, cache=replace(BLOCKS.cache, dtype=kv))
    latent, rope, heads = spec.latent, spec.rope_dim, spec.heads
    up, _ = matrix(bench, rng, "F16", Layout.ROW, (heads * (spec.key_dim + spec.value_dim), latent))
    caches = (uploaded(bench, normal(rng, 1, CONTEXT, dim), kv)[0] for dim in (latent, rope))
    layer, ctx = LayerCache(*caches), bench.context(1, base=200)
    norm, table = (bench.upload(np.ones(latent, np.float32)), EPS), np.ones((201, rope // 2, 2))
    table = bench.upload(table.astype(np.float32))

    def broken_heads(query: F32, row: F32) -> list[bool]:
        out = bench.poisoned(1, heads, spec.value_dim)
        source, attention = attended(bench, ctx, bench.upload(query), layer, spec, split)
        phases = [
            *latent_store(ctx, bench.upload(row), layer, spec, norm, table, label="t"),
            *attention,
            *latent_values(ctx, source, up, out, spec, label="t"),
        ]
        bench.run(phases, 1)
        return np.isnan(bench.download(out, heads, spec.value_dim)).any(axis=1).tolist()

    query, row = normal(rng, 1, heads, spec.query_dim), normal(rng, 1, latent + rope)
    assert broken_heads(query, row) == [False] * heads
    query[0, 1, 7] = np.nan
    assert broken_heads(query, row) == [False, True, False]
    query[0, 1, 7] = 0.0
    for value in (np.nan, *BEYOND_RANGE.get(kv, ())):
        row[0, latent + 3] = value  # of the key that all heads share
        assert broken_heads(query, row) == [True] * heads


def test_latents_beyond_the_context_are_dropped(bench, rng):
    cache = KvSpec(1, 96, 8, "f32", second_dim=32)
    spec = replace(SIZES, cache=cache)
    before = [np.full((8, width), -1, np.float32) for width in (96, 32)]
    layer = LayerCache(*(bench.upload(content) for content in before))
    ctx, table = (
        bench.context(2, slots=[7, 8], positions=[0, 0]),
        bench.upload(np.ones((1, 16, 2), "f4")),
    )
    norm = bench.upload(np.ones(96, np.float32)), EPS
    phases = latent_store(
        ctx, bench.upload(normal(rng, 2, 128)), layer, spec, norm, table, label="t"
    )
    bench.run(phases, 2)
    for content, buffer in zip(before, (layer.keys, layer.values), strict=True):
        stored = bench.download(buffer, *content.shape)
        assert np.array_equal(stored[:7], content[:7])
        assert not (stored[7] == -1).any()


def test_what_the_kernels_do_not_support_is_refused(bench, rng):
    up, _ = matrix(bench, rng, "F16", Layout.COLUMN, (6 * 44, 96))
    x, ctx = bench.poisoned(1 << 16), bench.context(1)
    with pytest.raises(FormatError, match="no kernel reads"):
        latent_values(ctx, Input(x), up, x, SIZES, label="t")
    narrow = on_device(ctx, workgroup_storage=1024)
    with pytest.raises(DeviceError, match="more workgroup memory"):
        latent_attention(narrow, x, LayerCache(x, x), x, SIZES, label="t")
    attention = SIZES.attention()
    with pytest.raises(DeviceError, match="more workgroup memory"):
        latent_decode(narrow, x, LayerCache(x, x), (x, x), SIZES, attention, label="t")
    odd = replace(SIZES, cache=replace(SIZES.cache, head_dim=98))
    with pytest.raises(FormatError, match="multiple of 4"):
        latent_attention(ctx, x, LayerCache(x, x), x, odd, label="t")
    for widths, holds in (((512, 64), True), ((512, 32), False), ((96, 64), False)):
        shape = CacheShape(1, *widths)
        assert shape.holds_blocks(32) is holds
        if not holds:  # two scales share a word
            with pytest.raises(UsageError, match="multiple of 64"):
                KvSpec.make(shape, 10, "q8_0")


def test_the_cache_holds_one_latent_and_one_key_for_each_token():
    spec = KvSpec.make(CacheShape(1, 512, 64), 100, "f16")
    assert [part.size for part in spec.parts] == [2 * 100 * 512, 2 * 100 * 64]
