"""Running ahead of readback: it changes no ids and allocates nothing per token.

The first tests use a backend whose next token is a hash of its whole cache, so that one wrong slot
changes the sequence. The others run on the GPU.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from rdrr_device.readback import Readback
from rdrr_runtime.backend import BackendInfo
from rdrr_runtime.decode.autoregressive import Autoregressive
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.chooser import Chooser
from rdrr_runtime.decode.rules import TokenRules
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.decode.strategy import Strategy
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams
from support.choices import assert_same_ids
from support.comparison import relative_error
from support.packages import VOCAB

EOS = 49  # an id that the hash never gives
END = VOCAB  # an id that the GPU never gives


class HashFeed:
    """A feed that runs passes as soon as they are submitted, like a GPU faster than the host."""

    def __init__(self, backend: Hashing, ids: Sequence[int], base: int) -> None:
        self._backend, self._next, self._base = backend, list(ids), base
        self._open: list[int] = []
        self._fenced: deque[list[int]] = deque()

    def submit(self, count: int) -> None:
        assert count > 0
        self._backend.events.append(count)
        for _ in range(count):
            self._open.append(self._backend.run(self._next, self._base))
            self._base, self._next = self._base + len(self._next), self._open[-1:]

    def fence(self) -> None:
        assert self._open
        self._backend.events.append("fence")
        self._fenced.append(self._open)
        self._open = []

    def collect(self) -> list[list[int]]:
        self._backend.events.append("collect")
        return [self._fenced.popleft()]


class Hashing:
    """A backend with feeds, whose next id is `EOS` once the cache has certain lengths."""

    def __init__(self, context: int = 200, ends: frozenset[int] = frozenset()) -> None:
        self.info = BackendInfo("fake", None, context, 0, 0)
        self.ahead = 4
        self.ends = ends
        self.cache: list[int] = []
        self.events: list[int | str] = []

    def run(self, ids: Sequence[int], base: int) -> int:
        assert base <= len(self.cache), "a pass may not leave a gap in the cache"
        assert base + len(ids) <= self.info.context, "a pass beyond the context"
        self.cache[base:] = ids
        if len(self.cache) in self.ends:
            return EOS
        return zlib.crc32(bytes(self.cache)) % EOS

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        feed = HashFeed(self, ids, base)
        feed.submit(count)
        feed.fence()
        return feed.collect()[0]

    def feed(self, ids: Sequence[int], base: int, *, sampled: bool = False) -> HashFeed:
        assert not sampled
        return HashFeed(self, ids, base)

    def close(self) -> None:
        pass


def run(backend, strategy, ids: Sequence[int], most: int, **rules):
    counts, stops = Counts(), frozenset({EOS if isinstance(backend, Hashing) else END})
    chooser = Chooser(backend, TokenRules(stop_ids=stops, **rules), ids)
    runs = list(strategy.run(Job(ids, 0, most), chooser, counts))
    return runs, counts


def flat(runs: Sequence[Sequence[int]]) -> list[int]:
    return [id_ for part in runs for id_ in part]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5, 8, 11])
@pytest.mark.parametrize("interval", [1, 2, 4, 8])
def test_ids_equal_those_of_reading_every_token_wherever_the_sequence_ends(rng, interval, ahead):
    prompt = rng.integers(0, EOS, 5).tolist()
    for length in range(1, 2 * interval + 3):
        ends = frozenset({len(prompt) + length - 1})
        plain, _ = run(Hashing(ends=ends), Autoregressive(1, 0), prompt, 40)
        backend = Hashing(ends=ends)
        runs, counts = run(backend, Autoregressive(interval, ahead), prompt, 40)
        assert flat(runs) == flat(plain)
        assert len(flat(runs)) == length
        assert flat(runs)[-1] == EOS
        assert [len(part) for part in runs[:-1]] == [1, *[interval] * len(runs)][: len(runs) - 1]
        # The interval with the end has run to its end, and `ahead` further passes.
        interval_end = 1 if length == 1 else 1 + -(-(length - 1) // interval) * interval
        assert counts.wasted == interval_end + (ahead if length > 1 else 0) - length
        assert counts.wasted_rows == counts.wasted
        assert counts.forwards == counts.rows == length - 1 + counts.wasted
        assert counts.readbacks == len(runs)
        assert len(backend.cache) == len(prompt) + counts.forwards


@pytest.mark.parametrize("ahead", [1, 2, 8])
@pytest.mark.parametrize("most", range(1, 14))
def test_nothing_is_submitted_beyond_the_last_token_or_the_context(rng, most, ahead):
    prompt = rng.integers(0, EOS, 3).tolist()
    expected, _ = run(Hashing(), Autoregressive(1, 0), prompt, most)
    backend = Hashing()
    runs, counts = run(backend, Autoregressive(4, ahead), prompt, most)
    assert flat(runs) == flat(expected)
    assert (counts.wasted, counts.forwards) == (0, most - 1)
    full = Hashing(context=len(prompt) + most - 1)  # the backend checks that no pass goes beyond
    stats = GenerationStats()
    out = flat(list(Engine(full, [], 64).generate(prompt, max_tokens=99, interval=4, stats=stats)))
    assert out == flat(expected)
    assert (stats.finish, stats.counts.wasted) == ("context", 0)


@pytest.mark.parametrize(("interval", "ahead"), [(1, 1), (1, 2), (4, 1), (8, 2), (2, 5)])
def test_the_device_has_work_during_a_readback_but_nothing_delays_the_first_token(
    rng, interval, ahead
):
    backend = Hashing()
    run(backend, Autoregressive(interval, ahead), rng.integers(0, EOS, 4).tolist(), 30)
    submitted = collected = 0
    for event in backend.events:
        if event == "collect":
            collected += 1 if not collected else min(interval, 30 - collected)
            assert submitted == (1 if collected == 1 else min(collected + ahead, 30))
        elif event != "fence":
            submitted += event
    assert collected == 30


def test_a_generation_after_an_early_end_equals_that_of_a_fresh_start(rng):
    prompt, turn = (rng.integers(0, EOS, size).tolist() for size in (6, 3))
    for length in range(1, 11):
        backend = Hashing(ends=frozenset({len(prompt) + length - 1}))
        engine = Engine(backend, [EOS], 64)
        out = flat(list(engine.generate(prompt, max_tokens=30, interval=4)))
        assert len(out) == length
        backend.ends = frozenset()
        whole, stats = [*prompt, *out, *turn], GenerationStats()
        again = flat(list(engine.generate(whole, max_tokens=9, interval=4, stats=stats)))
        fresh = flat(list(Engine(Hashing(), [], 64).generate(whole, max_tokens=9, interval=4)))
        assert again == fresh
        assert stats.cached_tokens == len(prompt) + length - 1


def test_passes_in_flight_when_a_generation_is_aborted_are_counted_as_wasted_and_not_cached(
    rng,
):
    prompt = rng.integers(0, EOS, 6).tolist()
    engine, stats = Engine(Hashing(), [EOS], 64), GenerationStats()
    runs = engine.generate(prompt, max_tokens=50, interval=4, stats=stats)
    out = [*next(runs), *next(runs)]
    runs.close()
    assert len(out) == 5
    assert stats.counts.forwards - stats.counts.wasted == 4
    assert stats.counts.wasted > 0
    again = flat(list(engine.generate(prompt, max_tokens=12, stats=(stats := GenerationStats()))))
    assert again == flat(list(Engine(Hashing(), [], 64).generate(prompt, max_tokens=12)))
    assert stats.cached_tokens == len(prompt) - 1


def test_aborting_a_generation_closes_its_strategy_even_if_others_hold_it(rng):
    class Kept(Strategy):
        ended = False

        def run(self, job, chooser, counts):
            del job, chooser, counts
            self.runs = self.generate()  # this reference prevents garbage collection
            return self.runs

        def generate(self):
            try:
                while True:
                    yield [1]
            finally:
                self.ended = True

    strategy, prompt = Kept(), rng.integers(0, EOS, 6).tolist()
    runs = Engine(Hashing(), [EOS], 64).generate(prompt, max_tokens=9, strategy=strategy)
    assert next(runs) == [1]
    assert not strategy.ended
    runs.close()
    assert strategy.ended


class Ending:
    """A GPU backend whose feeds return `END` as the id of one slot, whatever was computed."""

    def __init__(self, backend: GpuBackend, slot: int) -> None:
        self._backend, self._slot = backend, slot
        self.info, self.greedy, self.ahead = backend.info, backend.greedy, backend.ahead
        self.begin, self.sample = backend.begin, backend.sample
        self.sample_masked, self.take_logprobs = backend.sample_masked, backend.take_logprobs

    def feed(self, ids, base, *, sampled=False):
        feed = self._backend.feed(ids, base, sampled=sampled)
        return EndingFeed(feed, base + len(ids), self._slot)


class EndingFeed:
    def __init__(self, feed, at: int, slot: int) -> None:
        self._feed, self._at, self._slot = feed, at, slot
        self.submit, self.fence = feed.submit, feed.fence

    def collect(self) -> list[list[int]]:
        (ids,) = self._feed.collect()
        result = [END if self._at + i == self._slot else id_ for i, id_ in enumerate(ids)]
        self._at += len(ids)
        return [result]


def prompt_of(rng, size: int) -> list[int]:
    return rng.integers(0, VOCAB, size).tolist()


@pytest.mark.parametrize("interval", [1, 4, pytest.param(8, marks=pytest.mark.thorough)])
def test_on_the_gpu_nothing_is_created_or_written_after_the_second_token(backend, rng, interval):
    counters = backend.device.counters
    ids, counts = prompt_of(rng, 9), Counts()
    runs = Autoregressive(interval, 2).run(
        Job(ids, 0, 40), Chooser(backend, TokenRules(), ids), counts
    )
    next(runs)
    next(runs)
    before, reads = counters.copy(), counts.readbacks
    delivered = flat(list(runs))
    work = counters.since(before)
    assert work.buffer_creates + work.bind_group_creates + work.pipeline_creates == 0
    assert work.bytes_written == 0
    assert work.bytes_read == 4 * len(delivered)
    reads = counts.readbacks - reads
    assert work.maps == reads
    rest = 40 - (1 + interval + 2)  # two passes had been submitted before
    if interval == 1:
        assert work.submits == rest + (reads - 2)  # and so had the copies of their ids
    else:
        assert work.submits == -(-rest // 2) + reads


@pytest.mark.thorough
def test_on_the_gpu_ids_equal_those_of_one_readback_with_an_end_anywhere_in_an_interval(
    backend, package, rng
):
    ids = prompt_of(rng, 6)
    plain = backend.greedy(ids, 0, 14)
    turn = prompt_of(rng, 3)
    for interval, ahead, length in [(1, 2, 3), *((4, 2, at) for at in range(1, 10)), (8, 11, 6)]:
        ending = Ending(backend, len(ids) + length - 1)
        runs, counts = run(ending, Autoregressive(interval, ahead), ids, 30)
        assert flat(runs) == [*plain[: length - 1], END]
        assert (counts.wasted > 0) == (length > 1)
        held = [*ids, *plain[: length - 1]]  # the last id has not been run
        continued, whole = backend.greedy(turn, len(held), 3), [*held, *turn]
        assert_same_ids(continued, backend.greedy(whole, 0, 3), whole, package)
    second = backend.logits(turn, len(held))
    assert relative_error(second, backend.logits([*held, *turn], 0)) < 1e-5
    assert relative_error(backend.logits([*held[:-1], *turn], 0), second) > 1e-3  # the control


def test_on_the_gpu_a_generation_continues_after_a_readback_without_writes(backend, rng):
    ids = prompt_of(rng, 6)
    expected = backend.greedy(ids, 0, 15)
    feed = backend.feed(ids, 0)
    for _ in range(2):
        feed.submit(3)
        feed.fence()
    new = [*feed.collect()[0], *feed.collect()[0]]
    before = backend.device.counters.copy()
    new += backend.greedy(new[-1:], len(ids) + 5, 3)
    assert backend.device.counters.since(before).bytes_written == 0
    feed = backend.feed(new[-1:], len(ids) + 8)
    feed.submit(2)
    feed.fence()
    feed.submit(1)
    new += feed.collect()[0]
    assert new == expected[:11]
    before = backend.device.counters.copy()
    assert backend.greedy(new[-1:], len(ids) + 10, 4) == expected[11:]
    assert backend.device.counters.since(before).bytes_written > 0  # a pass had run ahead


@pytest.mark.parametrize(
    ("ahead", "most"),
    [
        pytest.param(1, 20, marks=pytest.mark.thorough),
        pytest.param(2, 17, marks=pytest.mark.thorough),
        (6, 18),
    ],
)
def test_on_the_gpu_samples_penalties_and_logprobs_do_not_depend_on_running_ahead(
    backend, rng, ahead, most
):
    ids = prompt_of(rng, 8)
    options = SamplingParams(
        temperature=1.3, top_k=40, presence_penalty=0.7, seed=int(rng.integers(2**40))
    )

    def sampled(ahead: int, slot: int, most: int) -> tuple[list[int], Logprobs]:
        recorded = Logprobs(2)
        rules = {"sampling": options, "logprobs": recorded}
        runs, _ = run(Ending(backend, slot), Autoregressive(4, ahead), ids, most, **rules)
        return flat(runs), recorded

    plain, recorded = sampled(0, -1, 20)
    assert len(set(plain)) > 5
    ended, _ = sampled(ahead, len(ids) + 6, 20)  # passes submitted here must leave no trace
    assert ended == [*plain[:6], END]
    sampled_ids, also = sampled(ahead, -1, most)
    assert sampled_ids == plain[:most]
    assert also.tokens == recorded.tokens[:most]


def test_more_ids_than_the_ring_holds_arrive_in_one_fence_or_several(backend, rng):
    ids = prompt_of(rng, 5)
    # Sampled, since the most probable token of a random model is soon the last one again.
    options = SamplingParams(temperature=1.3, seed=int(rng.integers(2**40)))
    runs, _ = run(backend, Autoregressive(66, 3), ids, 70, sampling=options)
    assert [len(part) for part in runs] == [1, 66, 3]
    single, _ = run(backend, Autoregressive(7, 9), ids, 70, sampling=options)
    assert flat(single) == flat(runs)
    assert len(set(flat(runs))) > 5


@pytest.mark.parametrize("native", [True, False])
def test_a_fetch_returns_the_contents_at_its_place_in_the_queue_in_any_order(bench, rng, native):
    device = bench.device
    public = copy(device.handle.implementation)
    public.raw = None
    readback = (
        device._readback if native else Readback(replace(device.handle, implementation=public))
    )
    slots = [bench.arena.empty("x", 4096) for _ in range(2)]
    contents = rng.integers(0, 256, (4, 4096), dtype=np.uint8)
    fetches = []
    for content in contents:
        for slot in slots:
            device.write(slot, content)
        parts = [slots[0].range(8, 40), slots[1].range(400, 4)]
        fetches.append(readback.begin(parts))
    for at in (3, 0, 2):
        first, second = fetches[at].collect()
        assert np.array_equal(first, contents[at, 8:48])
        assert np.array_equal(second, contents[at, 400:404])
    fetches.clear()  # the fetch that was not collected is abandoned
    creates = device.counters.buffer_creates
    kept = [readback.begin(slots[:1]) for _ in range(4)]
    assert device.counters.buffer_creates == creates
    assert all(np.array_equal(id_.collect()[0], contents[-1]) for id_ in kept)
    if not native:
        readback.close()
