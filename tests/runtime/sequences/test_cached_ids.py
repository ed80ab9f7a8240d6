"""Which ids of a prompt the engine runs, and what it does when the context is full.

The backend's next token is a hash of its whole cache, so that one wrong slot changes the sequence.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from rdrr_format.errors import GenerationError, UsageError
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.generation_state import ROW_WORDS
from rdrr_runtime.sampling.params import SamplingParams
from support.comparison import relative_error
from support.hash_backend import VOCAB, Hashing, forget, generate
from support.packages import SMALL, llama_manifest, write_random_package


def next_id(ids: Sequence[int]) -> int:
    return zlib.crc32(bytes(ids)) % VOCAB


def certain(ids: Sequence[int]) -> np.ndarray:
    """Return logits that leave a sampler no choice."""
    return np.where(np.arange(VOCAB) == next_id(ids), np.float32(50), np.float32(0))


def ids_after(prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + count:
        ids.append(next_id(ids))
    return ids[len(prompt) :]


@pytest.mark.parametrize("sampling", [None, SamplingParams(temperature=1.0, seed=1)], ids=str)
def test_only_ids_that_the_cache_does_not_hold_are_run_with_the_same_result(rng, sampling):
    backend = Hashing(200, certain)
    engine = Engine(backend, [], VOCAB)
    ids = rng.integers(0, VOCAB, 20).tolist()
    for more in (4, 0, 8, 1, 0, 5, 2, 7, 0, 3, 6, 1):  # with 0 the cache holds all ids
        keep = int(rng.integers(1, len(ids)))
        ids = ids[:keep] + rng.integers(0, VOCAB, more).tolist()
        shared = common(backend.cache, ids)
        before, count = backend.ran, int(rng.integers(1, 12))
        out, stats = generate(engine, ids, max_tokens=count, interval=4, sampling=sampling)
        assert out == ids_after(ids, count)
        assert stats.cached_tokens == min(shared, len(ids) - 1)
        assert backend.ran - before == len(ids) - stats.cached_tokens + count - 1
        ids = ids + out


def common(first: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(first, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(other)))


def test_wasted_or_aborted_passes_do_not_count_as_cached(rng):
    backend = Hashing(200, certain)
    ids = rng.integers(0, VOCAB, 6).tolist()
    ends = ids_after(ids, 3)[-1]
    engine = Engine(backend, [ends], VOCAB)
    out, stats = generate(engine, ids, max_tokens=30, interval=8)
    assert out[-1] == ends
    runs = engine.generate([*ids, *out], max_tokens=30, interval=8)
    next(runs)
    runs.close()
    again, stats = generate(Engine(backend, [], VOCAB), ids, max_tokens=3)
    assert (again, stats.cached_tokens) == (ids_after(ids, 3), 0)
    other, stats = generate(engine, [*ids, *out], max_tokens=1)
    assert other == ids_after([*ids, *out], 1)


def test_all_ids_run_again_after_the_backend_was_lent(rng):
    backend = Hashing(50, certain)
    engine = Engine(backend, [], VOCAB)
    ids = rng.integers(0, VOCAB, 9).tolist()
    generate(engine, ids, max_tokens=2)
    backend.logits([1, 2, 3], 0)
    forget(engine)
    out, stats = generate(engine, ids, max_tokens=5)
    assert (out, stats.cached_tokens) == (ids_after(ids, 5), 0)


def test_two_generations_at_once_are_refused_rather_than_mixed():
    engine = Engine(Hashing(50, certain), [], VOCAB)
    first, second = (engine.generate([id_], max_tokens=5, interval=1) for id_ in (1, 2))
    next(first)
    next(second)
    with pytest.raises(GenerationError, match="another call"):
        next(first)
    assert len(list(second)) == 4


def test_a_full_context_ends_the_sequence_unless_it_may_shift(rng):
    ids = rng.integers(0, VOCAB, 10).tolist()
    engine = Engine(Hashing(16, certain), [], VOCAB)
    out, stats = generate(engine, ids, max_tokens=30)
    assert (out, stats.finish) == (ids_after(ids, 7), "context")
    with pytest.raises(GenerationError, match="longer than the context"):
        engine.generate([*ids, *ids], max_tokens=1)
    longer, stats = generate(engine, ids, max_tokens=30, context_shift=4)
    assert longer[:7] == out
    assert (len(longer), stats.finish) == (30, "length")
    assert stats.context_shifts >= 3


@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize("keep", [0, 3, 8])
def test_a_shift_continues_as_if_the_kept_ids_were_the_prompt(rng, keep, interval):
    context = 16
    ids = rng.integers(0, VOCAB, 40).tolist()
    backend = Hashing(context, certain)
    options = {"max_tokens": 25, "context_shift": keep, "interval": interval}
    out, stats = generate(Engine(backend, [], VOCAB), ids, **options)
    expected, window = list(ids), list(ids)
    for _ in range(25):
        while len(window) > context:
            window[keep : keep + -(-(len(window) - keep) // 2)] = []
        window.append(next_id(window))
        expected.append(window[-1])
    assert out == expected[len(ids) :]
    assert 0 < stats.context_shifts < 25


@pytest.mark.parametrize("keep", [-1, 9])
def test_a_shift_keeps_at_most_half_of_the_context(keep):
    engine = Engine(Hashing(16, certain), [], VOCAB)
    with pytest.raises(UsageError, match="0 to 8"):
        engine.generate([1], max_tokens=1, context_shift=keep)
    assert list(engine.generate([1], max_tokens=1, context_shift=8))


def test_penalties_also_count_dropped_ids():
    seen: list[list[int]] = []

    class Sampling(Hashing):
        def begin(self, options, given, *, masked=False, logprobs=None):
            assert (options.presence_penalty, masked, logprobs) == (1.0, False, None)
            seen.append(list(given))

        def sample_masked(self, ids, base, mask):
            raise AssertionError(ids, base, mask)

        def sample(self, ids, base, count):
            return self.greedy(ids, base, count)

        def take_logprobs(self):
            return []

    ids = list(range(10))
    sampling = SamplingParams(presence_penalty=1.0)
    engine = Engine(Sampling(16, certain), [], VOCAB)
    options = {"max_tokens": 12, "sampling": sampling, "context_shift": 2}
    out, _ = generate(engine, ids, **options)
    assert len(seen) == 2
    assert sorted(seen[0]) == ids
    assert sorted(seen[1]) == sorted([*ids, *out[:7]])


def test_on_the_gpu_a_cached_prefix_with_sliding_windows_gives_the_ids_of_a_fresh_start(
    device, tmp_path, rng
):
    manifest = llama_manifest(**SMALL)
    manifest["inference"]["attention"]["slidingWindow"] = 24  # as in test_batch.py: same kernels
    package = write_random_package(tmp_path, manifest, rng)
    backend = GpuBackend(package, context=96, kv_dtype="f32", device=device)
    engine = Engine(backend, [], VOCAB)
    shared = rng.integers(0, VOCAB, 40).tolist()
    generate(engine, [*shared, 1, 2, 3], max_tokens=9)
    for rest in ([4], [5, 6, 7]):
        ids = [*shared, *rest]
        before = backend.device.counters.copy()
        out, stats = generate(engine, ids, max_tokens=6)
        assert stats.cached_tokens == 40
        written = backend.device.counters.since(before).bytes_written
        forget(engine)
        before = backend.device.counters.copy()
        afresh, stats = generate(engine, ids, max_tokens=6)
        assert (afresh, stats.cached_tokens) == (out, 0)
        assert backend.device.counters.since(before).bytes_written - written == 4 * ROW_WORDS * 40
        fast = backend.logits(rest, 40)
        assert relative_error(fast, backend.logits(ids, 0)) < 1e-5
    backend.close()
