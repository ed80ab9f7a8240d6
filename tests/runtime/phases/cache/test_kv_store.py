"""Tests of storing keys and values in caches of all types, and of the sizes of caches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_format.errors import FormatError
from rdrr_manifests.graph import CacheShape
from rdrr_runtime.phases.cache.kv_cache import KvSpec, LayerCache
from rdrr_runtime.phases.cache.kv_store import kv_store
from support.gpu import cache_in_q8_0, normal


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_keys_and_values_are_stored_at_their_slots(bench, rng, dtype) -> None:
    cache = KvSpec(3, 36, 16, dtype)
    kind = np.float16 if dtype == "f16" else np.float32
    k, v = normal(rng, 4, 3, 36), normal(rng, 4, 3, 36)
    empty = np.full((3, 16, 36), -1, kind)
    caches = [bench.upload(empty) for _ in range(2)]
    ctx = bench.context(4, base=5)
    phases = kv_store(
        ctx, bench.upload(k), bench.upload(v), LayerCache(*caches), cache=cache, label="t"
    )
    bench.run(phases, 4)
    for new, buffer in zip((k, v), caches, strict=True):
        stored = bench.device.read(buffer).view(kind)[: empty.size].reshape(empty.shape)
        expected = empty.copy()
        expected[:, 5:9] = new.transpose(1, 0, 2).astype(kind)
        assert np.array_equal(stored, expected)


EXPONENTS = {65520.0: 15, -65520.0: 15, 7e4: 16, -3e38: 127, np.inf: 128, -np.nan: 128}


def test_f16_holds_numbers_up_to_its_range_and_beyond_it_nan_with_their_exponent(bench) -> None:
    held = [0.0, -1e-6, 65504.0, -65504.0, 65519.996, -65519.996]
    k = np.float32([[[*held, *EXPONENTS]]])
    cache = KvSpec(1, k.size, 4, "f16")
    caches = LayerCache(*(bench.poisoned(cache.size // 4) for _ in range(2)))
    operands = bench.upload(k), bench.upload(k)
    bench.run(kv_store(bench.context(1), *operands, caches, cache=cache, label="t"), 1)
    for buffer in caches.buffers.values():
        stored = bench.device.read(buffer).view(np.float16)[: k.size]
        assert np.array_equal(stored[: len(held)], np.float32(held).astype(np.float16))
        assert np.isnan(stored[len(held) :]).all()
        exponents = (stored[len(held) :].view(np.uint16) & 255).astype(int) - 127
        assert exponents.tolist() == list(EXPONENTS.values())


@pytest.mark.parametrize(("largest", "exponent"), [(65519.0, None), (65521.0, 22), (1e9 / 127, 29)])
def test_the_scale_of_a_block_in_q8_0_is_nan_only_beyond_the_range_of_f16(
    bench, rng, largest, exponent
) -> None:
    cache, k = KvSpec(1, 64, 4, "q8_0"), normal(rng, 1, 1, 64)
    k[0, 0, 40] = -127 * largest
    caches = LayerCache(*(bench.poisoned(cache.size // 4) for _ in range(2)))
    operands = bench.upload(k), bench.upload(k)
    bench.run(kv_store(bench.context(1), *operands, caches, cache=cache, label="t"), 1)
    for buffer in caches.buffers.values():
        scales = bench.device.read(buffer)[4 * 64 :].view(np.float16)[:2]
        assert np.isfinite(scales[0])
        if exponent is None:
            assert scales[1] == 65504
        else:
            assert np.isnan(scales[1])
            assert int(scales.view(np.uint16)[1] & 255) - 127 == exponent


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_block_that_is_not_finite_has_no_finite_scale_in_q8_0(bench, rng, broken) -> None:
    cache = KvSpec(3, 64, 16, "q8_0")
    k, v = normal(rng, 4, 3, 64), normal(rng, 4, 3, 64)
    k[2, 1, 40] = broken
    caches = [bench.poisoned(cache.size // 4) for _ in range(2)]
    operands = bench.upload(k), bench.upload(v)
    ctx = bench.context(4, base=5)
    bench.run(kv_store(ctx, *operands, LayerCache(*caches), cache=cache, label="t"), 4)
    for buffer, has_broken in zip(caches, (True, False), strict=True):
        stored = bench.device.read(buffer)[: cache.size]
        scales = stored[3 * 16 * 64 :].view("<f2").reshape(3, 16, 2)[:, 5:9]
        assert np.argwhere(~np.isfinite(scales)).tolist() == [[1, 2, 1]] * has_broken


@pytest.mark.parametrize(("head_dim", "context"), [(96, 16), (64, 16), (32, 10)])
@pytest.mark.parametrize(("base", "rows"), [(0, 4), (5, 1), (5, 2), (4, 3)])
def test_storing_in_q8_0_leaves_the_slots_of_other_passes_unchanged(
    bench, rng, head_dim, context, base, rows
) -> None:
    cache = KvSpec(3, head_dim, context, "q8_0")
    k, v = normal(rng, rows, 3, head_dim), normal(rng, rows, 3, head_dim)
    k[..., :32] *= 1e-4  # scales that f16 holds as subnormal numbers
    v[-1, 1, -32:] = 0.0
    before = normal(rng, 3, context, head_dim)
    raw, held = cache_in_q8_0(before)
    assert len(raw) == cache.size == before.size // 32 * 34
    caches = [bench.upload(raw) for _ in range(2)]
    operands = bench.upload(k), bench.upload(v)
    ctx = bench.context(rows, base=base)
    bench.run(kv_store(ctx, *operands, LayerCache(*caches), cache=cache, label="t"), rows)
    for new, buffer in zip((k, v), caches, strict=True):
        stored = bench.device.read(buffer)[: cache.size]
        codes = stored[: before.size].view(np.int8).reshape(before.shape).astype(np.float32)
        scales = stored[before.size :].view("<f2").astype(np.float32)
        restored = codes * scales.repeat(32).reshape(before.shape)
        written = new.transpose(1, 0, 2)
        block_max = np.abs(written.reshape(-1, 32)).max(axis=1).repeat(32).reshape(written.shape)
        expected = held.copy()
        expected[:, base : base + rows] = restored[:, base : base + rows]
        assert np.array_equal(restored, expected)  # other slots are unchanged
        # Half a quantization step, plus the rounding error of the scale, subnormal f16 included.
        limit = block_max / 127 * (0.5 + 127 * 2**-11) + 127 * 2.0**-25
        assert (np.abs(restored[:, base : base + rows] - written) <= limit).all()
        assert restored[:, base : base + rows].any()


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_keys_are_stored_in_the_cache_of_their_sequence(bench, rng, dtype) -> None:
    cache = KvSpec(2, 36, 16, dtype, sequences=3)
    kind = np.float16 if dtype == "f16" else np.float32
    k, v = normal(rng, 3, 2, 36), normal(rng, 3, 2, 36)
    expected = [np.full((3, 2, 16, 36), -1, kind) for _ in range(2)]
    caches = [bench.upload(result) for result in expected]
    ctx = bench.context(3, slots=[15, 0, 7], sequences=[2, 0, 2])
    phases = kv_store(
        ctx, bench.upload(k), bench.upload(v), LayerCache(*caches), cache=cache, label="t"
    )
    bench.run(phases, 3)
    for new, buffer, full in zip((k, v), caches, expected, strict=True):
        for row, (sequence, slot) in enumerate([(2, 15), (0, 0), (2, 7)]):
            full[sequence, :, slot] = new[row].astype(kind)
        stored = bench.device.read(buffer).view(kind)[: full.size].reshape(full.shape)
        assert np.array_equal(stored, full)


@pytest.mark.parametrize(("mapped", "sequences"), [(True, 1), (False, 2)])
def test_a_quantized_cache_of_several_sequences_is_refused(bench, mapped, sequences) -> None:
    x, cache = bench.poisoned(4096), KvSpec(1, 32, 16, "q8_0")
    ctx = bench.context(1)
    assert kv_store(ctx, x, x, LayerCache(x, x), cache=cache, label="t")
    cache, ctx = replace(cache, sequences=sequences), replace(ctx, multi_sequence=mapped)
    with pytest.raises(FormatError, match="one sequence only"):
        kv_store(ctx, x, x, LayerCache(x, x), cache=cache, label="t")


def test_rows_beyond_the_context_are_dropped(bench, rng) -> None:
    cache = KvSpec(2, 4, 8, "f32")
    k = normal(rng, 4, 2, 4)
    caches = [bench.upload(np.zeros((2, 8, 4), np.float32)) for _ in range(2)]
    operands = bench.upload(k), bench.upload(k)
    bench.run(
        kv_store(bench.context(4, base=6), *operands, LayerCache(*caches), cache=cache, label="t"),
        4,
    )
    stored = bench.download(caches[0], 2, 8, 4)
    assert np.array_equal(stored[:, 6:], k[:2].transpose(1, 0, 2))
    assert not stored[:, :6].any()


def test_an_f16_cache_has_half_the_bytes() -> None:
    assert 2 * KvSpec(2, 64, 100, "f16").size == KvSpec(2, 64, 100, "f32").size


def test_a_q8_0_cache_has_34_bytes_for_32_elements() -> None:
    spec = KvSpec.make(CacheShape(2, 96), 101, "q8_0")
    assert spec.context == 102  # rounded up to even, because two scales share a word
    assert spec.size == 2 * 102 * 96 * 34 // 32
