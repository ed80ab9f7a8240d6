"""Continuous batching: texts that join and leave between steps get the ids that they get alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing

import pytest
from rdrr_runtime.backend import Row
from rdrr_runtime.decode.scheduler import Pace, ScheduledText, Scheduler
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.choices import assert_same_ids
from support.packages import SMALL, VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of

CONTEXT, END = 64, 7
GREEDY = SamplingParams()


def successor(ids: Sequence[int], salt: int = 0) -> int:
    """Return the id that follows a text: it depends on all ids and their order."""
    return random.Random(f"{salt} {list(ids)}").randrange(100)


class SlotsOfIds:
    """A batch whose cache holds ids, so that a row in a wrong place changes what follows.

    A sampled id depends on the sequence's seed too, and on how many it has sampled. As on a GPU,
    filling the cache takes the inputs of a feed away.
    """

    def __init__(
        self, sequences: int, *, waits_for_ids: bool = False, rewinds: bool = True
    ) -> None:
        self.sequences, self.context, self._rewinds = sequences, CONTEXT, rewinds
        self.cache = [[-1] * CONTEXT for _ in range(sequences)]
        self.seeds: dict[int, list[int]] = {}
        self.filled: list[int] = []
        self.feed: FeedOfIds | None = None
        self._waits_for_ids = waits_for_ids

    def border(self, _: Sequence[int], __: int, end: int) -> int:
        return end

    def resumable(self, _: int, base: int) -> int:
        return base if self._rewinds else 0

    def copy(self, source: int, target: int, slots: int) -> None:
        self.cache[target][:slots] = self.cache[source][:slots]

    def fill(self, rows: Sequence[Row]) -> None:
        self.filled.append(len(rows))
        self.feed = None
        for row in rows:
            self.cache[row.sequence][row.slot] = row.token

    def begin(self, sequence: int, options: SamplingParams, _: Sequence[int]) -> None:
        self.seeds[sequence] = [options.seed or 0, 0]

    def feed_rows(self, rows: Sequence[Row], *, sampled: bool):
        self.feed = None if self._waits_for_ids else FeedOfIds(self, rows, sampled)
        return self.feed

    def greedy(self, rows: Sequence[Row], count: int, *, sampled: bool = False) -> list[list[int]]:
        new: list[list[int]] = []
        for row in rows:
            ids = []
            for slot in range(row.slot, row.slot + count):
                self.cache[row.sequence][slot] = ids[-1] if ids else row.token
                salt = 0
                if sampled:
                    seed = self.seeds[row.sequence]
                    salt, seed[1] = seed[0] and 1000 * seed[0] + seed[1], seed[1] + 1
                ids.append(successor(self.cache[row.sequence][: slot + 1], salt))
            new.append(ids)
        return new

    def sample(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        return self.greedy(rows, count, sampled=True)


class FeedOfIds:
    """A feed that runs its passes when they are submitted, as a device does."""

    def __init__(self, batch: SlotsOfIds, rows: Sequence[Row], sampled: bool) -> None:
        self._batch, self._rows, self._sampled = batch, list(rows), sampled
        self._open: list[list[int]] = [[] for _ in rows]
        self._fenced: list[list[list[int]]] = []

    def submit(self, count: int) -> None:
        assert self._batch.feed is self
        ids = self._batch.greedy(self._rows, count, sampled=self._sampled)
        self._rows = [
            Row(new[-1], row.sequence, row.slot + count)
            for row, new in zip(self._rows, ids, strict=True)
        ]
        self._open = [[*old, *new] for old, new in zip(self._open, ids, strict=True)]

    def fence(self) -> None:
        self._fenced.append(self._open)
        self._open = [[] for _ in self._rows]

    def collect(self) -> list[list[int]]:
        return self._fenced.pop(0)


def text(prompt: Sequence[int], most: int = 12, sampling: SamplingParams = GREEDY) -> ScheduledText:
    return ScheduledText(list(prompt), most, sampling, frozenset({END}))


def alone(wanted: ScheduledText) -> list[int]:
    """Return the ids of a text without a scheduler."""
    ids = list(wanted.prompt)
    seed = wanted.sampling.seed or 0
    room = min(wanted.max_tokens, CONTEXT - len(ids) + 1)
    while len(ids) < len(wanted.prompt) + room:
        sampled = len(ids) - len(wanted.prompt)
        ids.append(successor(ids, seed and 1000 * seed + sampled))
        if ids[-1] == END:
            break
    return ids[len(wanted.prompt) :]


def run(queue: Scheduler, arriving: Sequence[ScheduledText], chance: random.Random) -> None:
    """Run texts that arrive between the steps, and check that what is delivered adds up."""
    left, received = list(arriving), {id(each): [] for each in arriving}
    while left or queue.running or queue.waiting:
        while left and chance.random() < 0.4:
            queue.add(left.pop())
        for each, ids, finish in queue.step():
            received[id(each)] += ids
            is_last = each.finish != "running" and received[id(each)] == each.ids
            assert finish == (each.finish if is_last else "running")
    assert all(each.ids == received[id(each)] for each in arriving)


def pace(chance: random.Random) -> Pace:
    """Return a pace at which prompts are read in parts, and short beginnings are copied."""
    rows = chance.choice([10, 50, None])
    return Pace(rows, interval=4, ahead=chance.choice([1, 4]), shared_rows=chance.choice([3, 12]))


def random_texts(chance: random.Random, count: int) -> list[ScheduledText]:
    """Return texts, some of which begin as others do, or as others and their answers."""
    texts: list[ScheduledText] = []
    for number in range(count):
        prompt = [chance.randrange(100) for _ in range(chance.choice([1, 2, 30, 60, CONTEXT]))]
        if texts and chance.random() < 0.5:
            other = chance.choice(texts)
            same = [*other.prompt, *alone(other)]
            prompt = [*same[: chance.randrange(1, len(same) + 1)], *prompt][:CONTEXT]
        seeded = SamplingParams(temperature=1.0, seed=number + 1)
        texts.append(text(prompt, chance.randrange(1, 30), chance.choice([GREEDY, seeded])))
    return texts


@pytest.mark.parametrize("waits_for_ids", [False, True])
@pytest.mark.parametrize("sequences", [1, 3, 8])
def test_texts_that_join_and_leave_get_the_ids_that_they_get_alone(sequences, waits_for_ids, rng):
    chance = random.Random(int(rng.integers(2**32)))
    batch = SlotsOfIds(sequences, waits_for_ids=waits_for_ids)
    texts = random_texts(chance, 40)
    run(Scheduler(batch, pace(chance)), texts, chance)
    assert [each.ids for each in texts] == [alone(each) for each in texts]
    assert "running" not in {each.finish for each in texts}


@pytest.mark.thorough
def test_500_rounds_of_32_texts_that_join_and_leave_give_the_ids_that_each_gives_alone(rng):
    chance = random.Random(int(rng.integers(2**32)))
    for _ in range(500):
        batch = SlotsOfIds(
            chance.randrange(1, 33),
            waits_for_ids=chance.random() < 0.2,
            rewinds=chance.random() < 0.7,
        )
        texts = random_texts(chance, 32)
        run(Scheduler(batch, pace(chance)), texts, chance)
        assert [each.ids for each in texts] == [alone(each) for each in texts]


@pytest.mark.parametrize("rewinds", [True, False])
def test_a_prompt_that_begins_as_one_before_runs_only_what_follows(rewinds):
    batch = SlotsOfIds(2, rewinds=rewinds)
    queue, first, other = Scheduler(batch), text(range(20, 40), 5), text([1, 2, 3], 5)
    run(queue, [other, first], random.Random(0))
    again = text([*range(20, 40), *first.ids, 50, 51], 5)
    batch.filled.clear()
    run(queue, [again], random.Random(0))
    assert again.ids == alone(again)
    # Of the prompt's rows the last answer's id, and the first of the two new ones, have not run.
    assert sum(batch.filled) == (2 if rewinds else 20 + len(first.ids) + 1)


def test_parts_of_prompts_end_where_the_backend_lets_them_end(monkeypatch):
    """The slots 5 to 24 run together, even if they are more rows than a step should have."""
    batch, texts = SlotsOfIds(2), [text(range(40), 3), text(range(50, 90), 3)]

    def border(_: Sequence[int], begin: int, end: int) -> int:
        return end if not 5 < end < 25 else 5 if begin < 5 else 25

    monkeypatch.setattr(batch, "border", border)
    Scheduler(batch, Pace(prompt_rows=10)).run(texts)
    assert batch.filled == [5 + 5, 20, 10, 4 + 20, 10, 4]
    assert [each.ids for each in texts] == [alone(each) for each in texts]


def test_texts_that_begin_alike_run_their_beginning_once():
    """The second waits for the rows that the first runs; the third comes when the first decodes."""
    batch = SlotsOfIds(3)
    queue = Scheduler(batch, Pace(prompt_rows=10, interval=1, ahead=1, shared_rows=8))
    first, second, third = (text([*range(40), 50 + number], 9) for number in range(3))
    queue.add(first)
    queue.add(second)
    while not first.ids:
        queue.step()
    queue.add(third)
    while queue.running or queue.waiting:
        queue.step()
    # Of their prompts of 41 ids the last one runs in decoding.
    assert sum(batch.filled) == 40
    assert [each.ids for each in (first, second, third)] == [
        alone(each) for each in (first, second, third)
    ]


def test_a_beginning_that_is_shorter_than_what_is_copied_runs_again():
    batch = SlotsOfIds(2)
    queue = Scheduler(batch, Pace(prompt_rows=10, interval=4, ahead=4, shared_rows=8))
    texts = [text([*range(7), 50 + number], 5) for number in range(2)]
    queue.run(texts)
    assert sum(batch.filled) == 14
    assert [each.ids for each in texts] == [alone(each) for each in texts]


def test_a_text_goes_on_by_itself_when_the_one_that_it_waits_for_is_removed():
    batch = SlotsOfIds(2)
    queue = Scheduler(batch, Pace(prompt_rows=10, interval=4, ahead=4, shared_rows=8))
    first, second = (text([*range(40), 50 + number], 5) for number in range(2))
    queue.add(first)
    queue.add(second)
    queue.step()
    queue.remove(first)
    while queue.running:
        queue.step()
    assert second.ids == alone(second)


def test_a_cache_that_is_taken_for_longer_than_it_is_is_noticed(monkeypatch):
    whole = property(lambda each: [*each.prompt, *each.ids])
    monkeypatch.setattr(ScheduledText, "cached", whole)
    queue, first = Scheduler(SlotsOfIds(1)), text(range(20, 40), 5)
    run(queue, [first], random.Random(0))
    again = text([*range(20, 40), *first.ids, 50, 51], 5)
    run(queue, [again], random.Random(0))
    assert again.ids != alone(again)


def test_a_row_of_another_sequence_is_noticed_by_these_tests(rng):
    chance = random.Random(int(rng.integers(2**32)))
    batch = SlotsOfIds(4)
    fill = batch.fill
    batch.fill = lambda rows: fill([row._replace(sequence=0) for row in rows])
    texts = random_texts(chance, 20)
    run(Scheduler(batch), texts, chance)
    assert [each.ids for each in texts] != [alone(each) for each in texts]


def test_a_long_prompt_is_read_in_parts_while_others_are_decoded():
    batch = SlotsOfIds(2)
    queue = Scheduler(batch, Pace(prompt_rows=10, interval=4, ahead=4))
    short, long = text([1, 2], 40), text(range(30, 71))
    queue.add(short)
    queue.step()
    queue.add(long)
    decoded = []
    while not long.ids:
        queue.step()
        decoded.append(len(short.ids))
    assert batch.filled == [1, 10, 10, 10, 10]
    assert decoded == sorted(decoded)
    assert decoded[0] < decoded[-2]


def rounds(queue: Scheduler, batch: SlotsOfIds, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Run a scheduler to its end and return the number of rows of each round."""
    rows, feed_rows = list[int](), batch.feed_rows

    def noting(new: Sequence[Row], *, sampled: bool):
        rows.append(len(new))
        return feed_rows(new, sampled=sampled)

    monkeypatch.setattr(batch, "feed_rows", noting)
    while queue.running or queue.waiting:
        queue.step()
    return rows


def endless(prompt: Sequence[int], most: int) -> ScheduledText:
    """Return a text that no id ends."""
    return ScheduledText(list(prompt), most, GREEDY, frozenset())


@pytest.mark.parametrize(
    ("lengths", "expected"), [([4, 30, 30, 30], [4]), ([4, 4, 30, 30], [4, 2]), ([4, 30], [2, 1])]
)
def test_a_round_goes_on_with_the_row_of_a_text_that_has_ended_until_half_of_them_have(
    lengths, expected, monkeypatch
):
    batch = SlotsOfIds(4)
    queue, texts = (
        Scheduler(batch),
        [endless([number], most) for number, most in enumerate(lengths)],
    )
    for each in texts:
        queue.add(each)
    assert rounds(queue, batch, monkeypatch) == expected
    for each in texts:
        assert each.ids == alone_without_end(each)


@pytest.mark.parametrize("ends_by_removal", [False, True])
def test_a_text_gets_the_sequence_of_one_whose_row_still_runs(ends_by_removal, monkeypatch):
    batch = SlotsOfIds(3)
    queue = Scheduler(batch)
    first, *others = (endless([number], 30) for number in range(3))
    first.max_tokens = 30 if ends_by_removal else 8
    follower = endless([*range(40, 50)], 20)
    for each in (first, *others, follower):
        queue.add(each)
    for _ in range(2):
        queue.step()
    if ends_by_removal:
        queue.remove(first)
    assert rounds(queue, batch, monkeypatch)[0] == 3
    assert follower.sequence == first.sequence
    for each in (*others, follower):
        assert each.ids == alone_without_end(each)


def alone_without_end(text: ScheduledText) -> list[int]:
    """Return the ids of a text that no id ends, without a scheduler."""
    ids = list(text.prompt)
    for _ in range(text.max_tokens):
        ids.append(successor(ids))
    return ids[len(text.prompt) :]


def test_ids_that_were_ahead_are_delivered_before_the_passes_of_a_text_that_joins():
    batch = SlotsOfIds(2)
    queue = Scheduler(batch, Pace(interval=4, ahead=4))
    first, second = endless([1], 40), endless([2, 3], 40)
    queue.add(first)
    queue.step()
    queue.add(second)
    assert [(part.text, len(part.ids)) for part in queue.step()] == [(first, 4)]
    assert [(part.text, len(part.ids)) for part in queue.step()] == [(first, 4), (second, 4)]


def test_texts_are_admitted_in_the_order_in_which_they_came():
    queue = Scheduler(SlotsOfIds(1))
    texts = [text([number], 3) for number in range(1, 5)]
    for each in texts:
        queue.add(each)
    ended: list[ScheduledText] = []
    while queue.running or queue.waiting:
        ended += [each for each, _, finish in queue.step() if finish != "running"]
    assert list(dict.fromkeys(ended)) == texts


def test_a_text_that_is_removed_gives_its_sequence_to_the_next():
    queue = Scheduler(SlotsOfIds(1))
    first, second = text([1], 50), text([2], 5)
    queue.add(first)
    queue.add(second)
    queue.step()
    assert (queue.running, queue.waiting) == (1, 1)
    queue.remove(first)
    while queue.running or queue.waiting:
        queue.step()
    assert second.ids == alone(second)
    assert first.finish == "running"


def test_removing_a_text_that_waits_changes_nothing_else():
    queue = Scheduler(SlotsOfIds(1))
    first, second = text([1], 6), text([2], 6)
    queue.add(first)
    queue.add(second)
    queue.step()
    queue.remove(second)
    while queue.running:
        queue.step()
    assert first.ids == alone(first)
    assert not second.ids


def test_a_gpu_gives_each_text_the_ids_that_it_gets_alone(device, request, tmp_path, rng):
    package = write_random_package(tmp_path, llama_manifest(**SMALL), generator_of(request))
    chance = random.Random(int(rng.integers(2**32)))
    ways = [
        GREEDY,
        SamplingParams(temperature=0.8, seed=3, top_k=5),
        SamplingParams(temperature=0.8, seed=4, frequency_penalty=0.5),
    ]
    texts = [
        text(rng.integers(0, VOCAB, size).tolist(), 9, way)
        for size, way in zip((3, 40, 1), ways, strict=True)
    ]
    # The context of test_batch.py, so that kernels are compiled once.
    with closing(GpuBackend(package, context=96, kv_dtype="f32", device=device)) as backend:
        engine = Engine(backend, [END], VOCAB)
        expected = [next_ids(engine, each) for each in texts]
        batch, copied = backend.batch(3, 96), []
        copy = batch.copy
        batch.copy = lambda *slots: (copied.append(slots[2]), copy(*slots))
        queue = Scheduler(batch, Pace(prompt_rows=16, shared_rows=8))
        run(queue, texts, chance)
        alike = [text([*range(100, 130), number], 9, ways[number]) for number in range(2)]
        texts += alike
        expected += [next_ids(engine, each) for each in alike]
        queue.run(alike)
        assert sum(copied) == 30
        follows = text([*texts[1].prompt, *texts[1].ids[:3], 5], 6, ways[1])
        run(queue, [follows], chance)
        assert follows.ids == next_ids(engine, follows)
    for each, ids in zip(texts, expected, strict=True):
        if each.sampling.is_greedy:
            assert_same_ids(each.ids, ids, each.prompt, package)
        else:
            assert each.ids == ids


def next_ids(engine: Engine, wanted: ScheduledText) -> list[int]:
    """Return the ids of a text that runs by itself, in the passes of a single sequence."""
    runs = engine.generate(wanted.prompt, max_tokens=wanted.max_tokens, sampling=wanted.sampling)
    return [token_id for ids in runs for token_id in ids]
