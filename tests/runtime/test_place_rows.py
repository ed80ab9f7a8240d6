"""Projections on their way to attention: one launch against the three that it stands for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_format.errors import FormatError
from rdrr_runtime.exec.traffic import traffic
from rdrr_runtime.phases.kv_cache import KvSpec
from rdrr_runtime.phases.kv_store import kv_store
from rdrr_runtime.phases.place_rows import Placing, place_rows
from rdrr_runtime.phases.rmsnorm import rms_norm_in_place
from rdrr_runtime.phases.rope import rope
from support.gpu import normal, relative_error

ROWS, HELD, CONTEXT, SEQUENCES, EPS = 5, 7, 90, 3, 1e-5


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), [(64, 6, 2), (80, 3, 3), (256, 2, 1)])
@pytest.mark.parametrize(
    ("dtype", "share", "apart"),
    [("f16", 0.5, True), ("f32", 0.25, False), ("f16", 0, False), ("f32", 0.5, True)],
)
def test_one_launch_does_what_three_do(
    any_bench, rng, head_dim, heads, kv_heads, normed, dtype, share, apart
) -> None:
    bench, pairs = any_bench, int(head_dim * share)
    base = CONTEXT - 3  # so that two rows are beyond the context
    cache = replace(KvSpec(kv_heads, head_dim, CONTEXT, dtype), sequences=SEQUENCES if apart else 1)
    positions = rng.integers(0, CONTEXT, ROWS).tolist()
    ctx = bench.context(ROWS, base=base, positions=positions, max_rows=HELD)
    if apart:
        places = np.array([(2, 5), (0, 9), (2, 6), (1, CONTEXT), (0, 0)], np.uint32)
        ctx = replace(ctx, state=replace(ctx.state, slot_mapping=bench.upload(places)))
    angles = rng.uniform(0, 6.28, (CONTEXT, max(pairs, 1)))
    table = bench.upload(np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32))
    gains = [bench.upload(0.1 * normal(rng, head_dim)) for _ in range(2)]
    counts = (heads, kv_heads, kv_heads)
    projected = [normal(rng, HELD, count, head_dim) for count in counts]
    size = SEQUENCES if apart else 1
    before = normal(rng, size, kv_heads, CONTEXT, head_dim).astype("f2" if dtype == "f16" else "f4")

    def run(launches) -> list[np.ndarray]:
        buffers = [bench.upload(one) for one in projected]
        caches = bench.upload(before), bench.upload(before)
        bench.run(launches(buffers, caches), ROWS)
        kind = np.float16 if dtype == "f16" else np.float32
        held = [bench.device.read(one).view(kind).astype(np.float32) for one in caches]
        return [bench.download(buffers[0], HELD, heads, head_dim), *held]

    def one(buffers, caches):
        spec = Placing(heads, cache, pairs, EPS, 1.0)
        assert spec.suits(ctx, 11, normed=normed)
        given = (gains[0], gains[1]) if normed else None
        operands = (buffers[0], buffers[1], buffers[2])
        turning = table if pairs else None
        return place_rows(ctx, operands, turning, given, caches, spec=spec, label="t")

    def three(buffers, caches):
        q, k, v = buffers
        made = []
        for x, gain, count in zip((q, k), gains, counts, strict=False):
            shape = {"width": head_dim, "eps": EPS, "offset": 1.0, "per_row": count}
            made += rms_norm_in_place(ctx, x, gain, **shape, label="t") if normed else []
            turns = {"heads": count, "head_dim": head_dim, "rotary_dim": 2 * pairs}
            made += rope(ctx, x, table, **turns, label="t") if pairs else []
        return made + kv_store(ctx, k, v, *caches, cache=cache, label="t")

    for ours, theirs in zip(run(one), run(three), strict=True):
        # A rounding of f32 may tip one of f16.
        assert relative_error(ours, theirs) < (1e-3 if dtype == "f16" else 1e-5)


def test_a_cache_of_blocks_and_few_bindings_do_not_suit(bench) -> None:
    ctx = bench.context(2)
    spec = Placing(4, KvSpec(2, 64, CONTEXT, "f16"), 32)
    assert spec.suits(ctx, 8, normed=False)
    assert not spec.suits(ctx, 8, normed=True)
    assert not replace(spec, cache=KvSpec(2, 64, CONTEXT, "q8_0")).suits(ctx, 16, normed=False)


def test_only_the_new_slots_count_as_traffic(bench) -> None:
    x, spec = bench.poisoned(4096), Placing(2, KvSpec(1, 64, CONTEXT, "f16"))
    caches = bench.poisoned(32 * CONTEXT), bench.poisoned(32 * CONTEXT)
    (made,) = place_rows(bench.context(3), (x, x, x), None, None, caches, spec=spec, label="t")
    assert traffic(made, 3, 50) == 3 * 2 * 2 * 64


def test_more_rotating_elements_than_a_head_has_are_refused(bench) -> None:
    x, spec = bench.poisoned(4096), Placing(2, KvSpec(1, 64, CONTEXT, "f32"), 33)
    caches = bench.poisoned(64 * CONTEXT), bench.poisoned(64 * CONTEXT)
    with pytest.raises(FormatError, match="rotate"):
        place_rows(bench.context(1), (x, x, x), x, None, caches, spec=spec, label="t")
