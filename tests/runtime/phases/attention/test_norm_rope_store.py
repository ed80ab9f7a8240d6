"""Tests of the fused norm, rope and cache store against the three phases that it replaces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_format.errors import FormatError
from rdrr_runtime.exec.traffic import traffic
from rdrr_runtime.phases.attention.head_transform import HeadTransform, QueryScale
from rdrr_runtime.phases.attention.norm_rope_store import MANY_ROWS, norm_rope_store, refusal
from rdrr_runtime.phases.attention.position_scale import position_scale
from rdrr_runtime.phases.attention.rope import rope
from rdrr_runtime.phases.cache.kv_cache import KvSpec, LayerCache
from rdrr_runtime.phases.cache.kv_store import kv_store
from rdrr_runtime.phases.norms.norm import NormForm, normalize_in_place
from rdrr_runtime.phases.phase import Phase
from support.comparison import relative_error
from support.gpu import normal

ROWS, CONTEXT, SEQUENCES, EPS = 5, 90, 3, 1e-5


@pytest.mark.parametrize("most", [7, MANY_ROWS], ids=["a short pass", "a long pass"])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("mapped", [False, True], ids=["one sequence", "several sequences"])
@pytest.mark.parametrize(
    ("head_dim", "heads", "kv_heads", "pairs", "dtype", "interleaved"),
    [
        (64, 6, 2, 0, "f16", False),
        (64, 6, 2, 32, "f32", True),
        (80, 3, 3, 20, "f16", True),
        (80, 3, 3, 40, "f32", False),
        (256, 2, 1, 64, "f32", False),
        (256, 2, 1, 128, "f16", False),
    ],
)
def test_the_fused_phase_equals_norm_rope_and_store(
    any_bench, rng, head_dim, heads, kv_heads, pairs, dtype, interleaved, mapped, normed, most
) -> None:
    bench, size = any_bench, SEQUENCES if mapped else 1
    cache = KvSpec(kv_heads, head_dim, CONTEXT, dtype, sequences=size)
    positions = rng.integers(0, CONTEXT, ROWS).tolist()
    # The slots of some rows are beyond the context.
    slots = [5, 9, 6, CONTEXT, 0] if mapped else [CONTEXT - 3 + row for row in range(ROWS)]
    sequences = [2, 0, 2, 1, 0] if mapped else None
    ctx = bench.context(ROWS, slots=slots, sequences=sequences, positions=positions, max_rows=most)
    angles = rng.uniform(0, 6.28, (CONTEXT, max(pairs, 1)))
    table = bench.upload(np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32))
    gains = 0.1 * normal(rng, 2, head_dim)
    counts = (heads, kv_heads, kv_heads)
    projected = [normal(rng, most, count, head_dim) for count in counts]
    before = normal(rng, size, kv_heads, CONTEXT, head_dim).astype("f2" if dtype == "f16" else "f4")

    def run(phases) -> list[np.ndarray]:
        buffers = [bench.upload(array) for array in projected]
        caches = bench.upload(before), bench.upload(before)
        bench.run(phases(buffers, caches), ROWS)
        kind = np.float16 if dtype == "f16" else np.float32
        held = [bench.device.read(cache).view(kind).astype(np.float32) for cache in caches]
        return [bench.download(buffers[0], most, heads, head_dim), *held]

    def fused(buffers, caches):
        assert refusal(cache) is None
        transform = HeadTransform(
            pairs,
            table if pairs else None,
            bench.upload(gains) if normed else None,
            EPS,
            1.0,
            interleaved,
            QueryScale(0.5, 7, 1) if interleaved else None,
        )
        return norm_rope_store(
            ctx,
            tuple(buffers),
            LayerCache(*caches),
            heads=heads,
            cache=cache,
            transform=transform,
            label="t",
        )

    def separate(buffers, caches):
        q, k, v = buffers
        phases = []
        for x, gain, count in zip((q, k), gains, counts, strict=False):
            form = NormForm(
                width=head_dim, eps=EPS, weight=bench.upload(gain), offset=1.0, per_row=count
            )
            phases += normalize_in_place(ctx, x, form, label="t") if normed else []
            rotation = {"heads": count, "head_dim": head_dim, "rotary_dim": 2 * pairs}
            if pairs:
                phases += rope(ctx, x, table, **rotation, interleaved=interleaved, label="t")
        if interleaved:
            factors = {"scale": 0.5, "length": 7, "offset": 1}
            phases += position_scale(ctx, q, width=heads * head_dim, **factors, label="t")
        return phases + kv_store(ctx, k, v, LayerCache(*caches), cache=cache, label="t")

    for ours, theirs in zip(run(fused), run(separate), strict=True):
        # A rounding difference in f32 may change the rounding to f16.
        assert relative_error(ours, theirs) < (1e-3 if dtype == "f16" else 1e-5)


def test_a_quantized_cache_is_refused() -> None:
    cache = KvSpec(2, 64, CONTEXT, "f16")
    assert refusal(cache) is None
    reason = refusal(replace(cache, dtype="q8_0"))
    assert reason is not None
    assert "blocks of 32" in reason


def fused_phase(bench, rows: int, cache: KvSpec, transform: HeadTransform) -> list[Phase]:
    x = bench.poisoned(4096)
    caches = LayerCache(bench.poisoned(64 * CONTEXT), bench.poisoned(64 * CONTEXT))
    ctx = bench.context(rows)
    return norm_rope_store(
        ctx, (x, x, x), caches, heads=2, cache=cache, transform=transform, label="t"
    )


def test_only_the_new_slots_count_as_memory_traffic(bench) -> None:
    (phase,) = fused_phase(bench, 3, KvSpec(1, 64, CONTEXT, "f32"), HeadTransform())
    assert traffic(phase, 3, 50) == 3 * 2 * 4 * 64


def test_more_rotated_elements_than_a_head_has_are_refused(bench) -> None:
    cache, table = KvSpec(1, 64, CONTEXT, "f32"), bench.poisoned(4096)
    assert fused_phase(bench, 1, cache, HeadTransform(32, table))
    with pytest.raises(FormatError, match="more elements are rotated"):
        fused_phase(bench, 1, cache, HeadTransform(33, table))


@pytest.mark.parametrize(("pairs", "has_table"), [(32, False), (0, True)])
def test_rotated_pairs_without_a_table_of_angles_are_refused(bench, pairs, has_table) -> None:
    cache, table = KvSpec(1, 64, CONTEXT, "f32"), bench.poisoned(4096)
    with pytest.raises(FormatError, match="go together"):
        fused_phase(bench, 1, cache, HeadTransform(pairs, table if has_table else None))
