"""Running ahead of readback in a batch, with a backend whose next ids are hashes of its caches."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence

import pytest
from rdrr_runtime.backend import Row
from rdrr_runtime.decode.scheduler import Pace, ScheduledText, Scheduler
from rdrr_runtime.sampling.params import SamplingParams

VOCAB = 50
CONTEXT = 40
MOST = 17


class HashFeed:
    """A feed that runs steps as soon as they are submitted, like a GPU faster than the host."""

    def __init__(self, backend: Hashing, rows: Sequence[Row]) -> None:
        self._backend, self._rows = backend, list(rows)
        self._open: list[list[int]] = []
        self._fenced: deque[list[list[int]]] = deque()

    def submit(self, count: int) -> None:
        assert count > 0
        self._backend.events.append(count)
        for _ in range(count):
            ids = [self._backend.run(row) for row in self._rows]
            self._open.append(ids)
            self._rows = [
                Row(id_, row.sequence, row.slot + 1)
                for id_, row in zip(ids, self._rows, strict=True)
            ]

    def fence(self) -> None:
        assert self._open
        self._fenced.append(self._open)
        self._open = []

    def collect(self) -> list[list[int]]:
        self._backend.events.append("collect")
        return [list(ids) for ids in zip(*self._fenced.popleft(), strict=True)]


class Hashing:
    """A batch of three sequences."""

    def __init__(self, *, runs_ahead: bool = True) -> None:
        self.sequences, self.context = 3, CONTEXT
        self.events: list[int | str] = []
        self._caches: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self._runs_ahead = runs_ahead

    def border(self, _: Sequence[int], __: int, end: int) -> int:
        return end

    def resumable(self, sequence: int, base: int) -> int:
        return min(base, len(self._caches[sequence]))

    def run(self, row: Row) -> int:
        cache = self._caches[row.sequence]
        assert row.slot < self.context, "a step beyond the context"
        assert row.slot <= len(cache), "a step may not leave a gap in the cache"
        cache[row.slot :] = [row.token]
        return zlib.crc32(bytes(cache)) % VOCAB

    def fill(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.run(row)

    def greedy(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        feed = HashFeed(self, rows)
        feed.submit(count)
        feed.fence()
        return feed.collect()

    sample = greedy

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        del sequence, options, seen

    def feed_rows(self, rows: Sequence[Row], *, sampled: bool) -> HashFeed | None:
        assert not sampled
        return HashFeed(self, rows) if self._runs_ahead else None


def run(
    backend: Hashing, prompts: Sequence[Sequence[int]], interval: int, stop: int
) -> list[ScheduledText]:
    texts = [ScheduledText(ids, MOST, SamplingParams(), frozenset({stop})) for ids in prompts]
    Scheduler(backend, Pace(interval=interval)).run(texts)
    return texts


@pytest.mark.parametrize("interval", [1, 2, 3, 8, 40])
def test_running_ahead_changes_no_ids_wherever_the_sequences_end(rng, interval) -> None:
    sizes = (3, 30, 1, 9, 5, CONTEXT - 4, CONTEXT)
    prompts = [rng.integers(0, VOCAB, size).tolist() for size in sizes]
    for stop in range(VOCAB + 1):  # the last one never comes
        result = run(Hashing(), prompts, interval, stop)
        expected = run(Hashing(runs_ahead=False), prompts, 1, stop)
        assert [(text.ids, text.finish) for text in result] == [
            (text.ids, text.finish) for text in expected
        ]


@pytest.mark.parametrize("interval", [1, 2, 8])
def test_the_device_has_work_while_ids_are_read_back(rng, interval) -> None:
    prompts = [rng.integers(0, VOCAB, 4).tolist() for _ in range(3)]
    backend = Hashing()
    run(backend, prompts, interval, VOCAB)
    submitted = collected = 0
    for event in backend.events:
        if isinstance(event, int):
            submitted += event
            continue
        collected = min(collected + interval, MOST)
        assert submitted == min(collected + min(Pace.ahead, interval), MOST)
    assert collected == MOST


def test_the_steps_ahead_of_an_end_serve_the_sequences_that_go_on(rng) -> None:
    prompts = [rng.integers(0, VOCAB, size).tolist() for size in (4, CONTEXT - 4)]
    backend = Hashing()
    long, short = run(backend, prompts, 4, VOCAB)
    assert (len(long.ids), len(short.ids)) == (MOST, 5)
    assert sum(event for event in backend.events if isinstance(event, int)) == MOST
