"""Attention of one token from its raw projections, against the ops that it stands for in torch."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_runtime.phases.attention_decode import DecodeAttention, attention_decode
from rdrr_runtime.phases.kv_cache import KvSpec
from rdrr_runtime.reference import ops
from support.gpu import Bench, cache_in_q8_0, normal, relative_error

CONTEXT = 640
LONG = 2304  # parts longer than their least span
POISON = 60000.0  # of slots that must not be read; within the range of f16


class Case(NamedTuple):
    """Attention of one token; `rotary` is the part of a head that rotates."""

    head_dim: int
    heads: int
    kv_heads: int
    dtype: str
    context: int
    base: int
    rotary: float
    window: int = 0
    softcap: float = 0.0

    def __str__(self) -> str:
        return " ".join(map(str, self))


CASES = (
    Case(64, 8, 2, "f16", CONTEXT, 0, 1.0),
    Case(64, 8, 2, "q8_0", LONG, LONG - 20, 0.5, window=100),
    Case(80, 3, 3, "f32", CONTEXT, 63, 0.0, softcap=5.0),
    Case(80, 3, 3, "f16", LONG, LONG - 20, 1.0),
    Case(128, 4, 1, "q8_0", CONTEXT, 64, 1.0, softcap=5.0),
    Case(128, 4, 1, "f32", CONTEXT, CONTEXT - 20, 0.5, window=100),
    Case(256, 2, 2, "f16", CONTEXT, 127, 1.0, window=100, softcap=5.0),
    Case(256, 2, 2, "q8_0", CONTEXT, CONTEXT - 20, 0.0),
)


def stored(bench: Bench, values: np.ndarray, dtype: str) -> BufferSlice:
    if dtype == "q8_0":
        return bench.upload(cache_in_q8_0(values)[0])
    return bench.upload(values.astype(np.float16) if dtype == "f16" else values)


def joined(parts: np.ndarray, stats: np.ndarray) -> np.ndarray:
    """What the output projection makes of the parts."""
    live = stats[..., 1] > 0
    fade = np.where(live, np.exp(stats[..., 0] - stats[..., 0].max(1, keepdims=True)), 0.0)
    mass = (fade * np.where(live, stats[..., 1], 0.0)).sum(1)
    sums = np.where(live[..., None], parts, 0.0) * fade[..., None]
    return sums.sum(1) / mass[:, None]


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_parts_join_to_attention(
    any_bench: Bench, rng: np.random.Generator, case: Case, normed: bool
) -> None:
    bench, base, window, softcap = any_bench, case.base, case.window, case.softcap
    heads, kv_heads, head_dim = case.heads, case.kv_heads, case.head_dim
    dtype, context, pairs = case.dtype, case.context, int(head_dim * case.rotary) // 2
    ctx = bench.context(1, base=base, positions=[base + 7])
    cache = KvSpec(kv_heads, head_dim, context, dtype)
    spec = DecodeAttention(
        heads, cache, pairs, 0.3, window, softcap, eps=1e-5 if normed else 0.0, offset=1.0
    )
    assert spec.suits(ctx, 16)
    projected = normal(rng, heads + 2 * kv_heads, head_dim)
    angles = rng.uniform(0, 6.28, (context + 8, pairs))
    table = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    keys, values = (normal(rng, kv_heads, context, head_dim) for _ in range(2))
    keys[:, base:], values[:, base:] = POISON, POISON
    gains = [0.1 * normal(rng, head_dim) for _ in range(2)]
    k_cache, v_cache = stored(bench, keys, dtype), stored(bench, values, dtype)
    parts = bench.poisoned(heads, spec.splits, head_dim)
    stats = bench.poisoned(heads, spec.splits, 2)
    launches = attention_decode(
        ctx,
        bench.upload(projected),
        bench.upload(table) if pairs else None,
        (bench.upload(gains[0]), bench.upload(gains[1])) if normed else None,
        (k_cache, v_cache),
        parts,
        stats,
        spec=spec,
        label="attention",
    )
    bench.run(launches, 1)
    found = joined(
        bench.download(parts, heads, spec.splits, head_dim).astype(np.float64),
        bench.download(stats, heads, spec.splits, 2).astype(np.float64),
    )

    q, k, v = (
        torch.from_numpy(one).unsqueeze(0) for one in np.split(projected, [heads, heads + kv_heads])
    )
    if normed:
        q, k = (
            ops.rms_norm(x, torch.from_numpy(gain), 1e-5, 1.0)
            for x, gain in zip((q, k), gains, strict=True)
        )
    q, k = (ops.rope(x, torch.tensor([base + 7]), torch.from_numpy(table)) for x in (q, k))
    keys[:, base], values[:, base] = k[0].numpy(), v[0].numpy()
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
        window=window,
        softcap=softcap,
    )
    # A rounding of f32 may tip one of f16 or of a code, so the new key allows a little more.
    tolerance = {"f32": 1e-4, "f16": 2e-3, "q8_0": 1e-2}[dtype]
    assert relative_error(found, expected[0].numpy()) < tolerance


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("slot", "window"), [(0, 100), (37, 0)])
def test_rows_of_several_texts_are_what_each_text_gives_alone(
    any_bench, rng, slot, window, normed
) -> None:
    bench, heads, kv_heads, head_dim, context, pairs = any_bench, 6, 2, 64, 200, 32
    sequences, slots = [2, 0, 3], [slot, 150, 64]
    rows = len(slots)
    cache = replace(KvSpec(kv_heads, head_dim, context, "f16"), sequences=4)
    spec = DecodeAttention(heads, cache, pairs, 0.3, window, eps=1e-5)
    projected = normal(rng, rows, heads + 2 * kv_heads, head_dim)
    angles = rng.uniform(0, 6.28, (context, pairs))
    table = bench.upload(np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32))
    gains = tuple(bench.upload(0.1 * normal(rng, head_dim)) for _ in range(2)) if normed else None
    held = [normal(rng, 4, kv_heads, context, head_dim) for _ in range(2)]

    def run(ctx, spec, projected, caches, count) -> tuple[np.ndarray, ...]:
        parts = bench.poisoned(count, heads, spec.splits, head_dim)
        stats = bench.poisoned(count, heads, spec.splits, 2)
        made = attention_decode(
            ctx, bench.upload(projected), table, gains, caches, parts, stats, spec=spec, label="t"
        )
        bench.run(made, count)
        shape = count, heads, spec.splits, head_dim
        left = [bench.device.read(one) for one in caches]
        return bench.download(parts, *shape), bench.download(stats, *shape[:3], 2), *left

    places = np.array([*zip(sequences, slots, strict=True)], np.uint32)
    ctx = bench.context(rows, positions=slots, max_rows=rows + 2)
    padded = np.concatenate([places, places[:2]])
    ctx = replace(ctx, state=replace(ctx.state, slot_mapping=bench.upload(padded)))
    assert spec.suits(ctx, 16)
    found = run(ctx, spec, projected, tuple(stored(bench, one, "f16") for one in held), rows)
    lone = replace(spec, cache=replace(cache, sequences=1))
    for row, (sequence, base) in enumerate(places.tolist()):
        own = tuple(stored(bench, one[sequence], "f16") for one in held)
        alone = bench.context(1, base=base, positions=[base])
        parts, stats, *caches = run(alone, lone, projected[row], own, 1)
        assert np.array_equal(found[0][row], parts[0], equal_nan=True)
        assert np.array_equal(found[1][row], stats[0], equal_nan=True)
        for ours, left in zip(found[2:], caches, strict=True):
            assert np.array_equal(ours.reshape(4, -1)[sequence], left)
    untouched = stored(bench, held[0], "f16")
    first = bench.device.read(untouched).reshape(4, -1)[1]
    assert np.array_equal(found[2].reshape(4, -1)[1], first)  # a sequence without a row


def test_the_kernel_says_what_it_does_not_suit(bench: Bench) -> None:
    ctx = bench.context(1)

    def suits(heads: int = 8, kv_heads: int = 2, head_dim: int = 64, buffers: int = 10) -> bool:
        cache = KvSpec(kv_heads, head_dim, CONTEXT, "f16")
        return DecodeAttention(heads, cache, head_dim // 2, 1.0).suits(ctx, buffers)

    assert suits()
    assert not suits(heads=32)  # 16 query heads a key-value head
    assert not suits(buffers=8)
    assert not suits(head_dim=1024)
