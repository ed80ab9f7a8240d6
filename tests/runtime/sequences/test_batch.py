"""Batches of several sequences: each prompt gets the ids that it would get alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rdrr_format.errors import GenerationError, UsageError
from rdrr_runtime.backend import Row
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.decode.base import Counts
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.choices import assert_same_ids
from support.comparison import relative_error
from support.packages import SMALL, VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of

CONTEXT = 96
EXACT, APART, IN_INT8 = 1e-3, 1e-2, 5e-2
STEPS = 6
"""Steps whose errors a test of int8 compares; a single row may have small logits alone."""


def windowed(**options: Any) -> dict[str, Any]:
    manifest = llama_manifest(**options)
    manifest["inference"]["attention"]["slidingWindow"] = 24
    return manifest


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("batch")
    return write_random_package(folder, windowed(**SMALL), generator_of(request))


def prompts(rng, *sizes: int) -> list[list[int]]:
    return [rng.integers(0, VOCAB, size).tolist() for size in sizes]


def test_the_logits_of_each_row_are_those_of_its_own_sequence(device, tmp_path, rng):
    package = write_random_package(tmp_path, windowed(layers=2), rng)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    reference = CpuBackend(package, context=CONTEXT)
    batch = backend.batch(3, CONTEXT)
    all_prompts = prompts(rng, 9, 40, 1)
    filling = [
        Row(id_, sequence, slot)
        for sequence, ids in enumerate(all_prompts)
        for slot, id_ in enumerate(ids[:-1])
    ]
    batch.fill(filling)
    rows = [Row(ids[-1], sequence, len(ids) - 1) for sequence, ids in enumerate(all_prompts)]
    ours = batch.logits(rows)
    expected = np.concatenate([reference.logits(ids, 0) for ids in all_prompts])
    assert relative_error(ours, expected) < EXACT
    reordered = batch.logits([rows[2], rows[0]])
    assert relative_error(reordered, expected[[2, 0]]) < EXACT
    wrong = batch.logits([Row(all_prompts[0][-1], 2, len(all_prompts[2]) - 1)])
    assert relative_error(wrong, expected[:1]) > APART  # the control: sequences matter
    backend.close()


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(None, marks=pytest.mark.thorough),
        SamplingParams(temperature=1.0, top_k=40, presence_penalty=0.2, seed=3),
    ],
)
def test_a_batch_gives_the_sequences_of_single_runs(backend, package, rng, sampling):
    all_prompts = prompts(rng, 5, 30, 1, 12, 3)
    expected = []
    engine = Engine(backend, [], VOCAB)
    options = {"max_tokens": 11, "sampling": sampling}
    for ids in all_prompts:
        runs = engine.generate(ids, **options)
        expected.append([id_ for run in runs for id_ in run])
    # A stop id that ends some sequences early, so that waiting prompts take their place.
    stop = expected[1][4]
    counts = Counts()
    results = engine.generate_batch(
        all_prompts, **options, sequences=3, stop_ids=[stop], interval=4, counts=counts
    )
    for sequence, ids, prompt in zip(results, expected, all_prompts, strict=True):
        ended = stop in ids
        assert_same_ids(sequence.ids, ids[: ids.index(stop) + 1] if ended else ids, prompt, package)
        assert sequence.finish == ("stop" if ended else "length")
    assert counts.forwards < sum(map(len, expected))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layout", "window"), [("row", None), ("row", 24), ("column", None)], ids=str
)
def test_a_batch_in_int8_is_as_accurate_as_a_single_sequence(device, tmp_path, rng, layout, window):
    """Rows of several sequences use fused kernels and rows of one do not; both fill one cache."""
    manifest = llama_manifest("Q4_K", layout, embedding="Q6_K")
    manifest["inference"]["attention"]["slidingWindow"] = window
    package = write_random_package(tmp_path / "package", manifest, rng)
    policy = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}})
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, policy=policy)
    batch, all_prompts = backend.batch(3, CONTEXT), prompts(rng, 9, 40, 1)
    batch.fill(
        [Row(id_, at, slot) for at, ids in enumerate(all_prompts) for slot, id_ in enumerate(ids)]
    )
    whole = [[*ids, *prompts(rng, STEPS)[0]] for ids in all_prompts]
    logits = [
        batch.logits(
            [Row(ids[step - STEPS], at, len(ids) + step - STEPS) for at, ids in enumerate(whole)]
        )
        for step in range(STEPS)
    ]
    reference = CpuBackend(package, context=CONTEXT)
    expected = [reference.logits(ids, 0, all_rows=True)[-STEPS:] for ids in whole]
    error = relative_error(np.stack(logits), np.stack(expected, axis=1))
    assert 1e-5 < error < IN_INT8  # so large only with int8
    backend.close()


def test_the_dispatches_of_a_step_do_not_depend_on_the_rows(backend, rng):
    batch = backend.batch(4, CONTEXT)
    work = []
    for count in (2, 4):
        rows = [Row(int(rng.integers(VOCAB)), sequence, 0) for sequence in range(count)]
        batch.greedy(rows, 1)
        before = backend.device.counters.copy()
        batch.greedy(rows, 8)
        done = backend.device.counters.since(before)
        assert done.buffer_creates + done.bind_group_creates + done.pipeline_creates == 0
        assert done.maps == 1
        work.append((done.dispatches, done.submits))
    assert work[0] == work[1]


def test_a_sequence_alone_in_a_batch_runs_the_fused_products_of_one_row(backend, package, rng):
    batch, ids = backend.batch(4, CONTEXT), prompts(rng, 4)[0]
    counters, dispatches = backend.device.counters, {}
    for count in (1, 2):
        rows = [Row(id_, at, 0) for at, id_ in enumerate(ids[:count])]
        new_ids = batch.greedy(rows, 12)
        before = counters.copy()
        batch.greedy(rows, 1)
        dispatches[count] = counters.since(before).dispatches
    runs = Engine(backend, [], VOCAB).generate(ids[:1], max_tokens=12)
    expected = [id_ for run in runs for id_ in run]
    assert_same_ids(new_ids[0], expected, ids[:1], package)
    assert batch.greedy([Row(ids[0], 3, 0)], 12) == [expected]
    assert dispatches[1] < dispatches[2]


def test_several_steps_at_once_give_the_ids_of_single_steps(backend, rng):
    rows, count = [Row(int(rng.integers(VOCAB)), sequence, 0) for sequence in range(3)], 41
    batch = backend.batch(3, CONTEXT)
    # Sampled, since the most probable token of a random model is soon the last one again.
    options = SamplingParams(temperature=1.2, top_k=40, top_p=0.9, seed=int(rng.integers(2**40)))

    def begin() -> None:
        for row in rows:
            batch.begin(row.sequence, options, [])

    begin()
    new_ids = batch.sample(rows, count)
    begin()
    expected = [[row.token] for row in rows]
    for slot in range(count):
        step = [Row(ids[-1], sequence, slot) for sequence, ids in enumerate(expected)]
        for ids, new in zip(expected, batch.sample(step, 1), strict=True):
            ids += new
    assert new_ids == [ids[1:] for ids in expected]
    assert min(len(set(ids)) for ids in new_ids) > 5


def test_rows_that_continue_the_last_step_need_no_write(backend, rng):
    rows = [Row(int(rng.integers(VOCAB)), sequence, 0) for sequence in range(3)]
    batch, counters = backend.batch(3, CONTEXT), backend.device.counters
    expected = batch.greedy(rows, 9)
    begun = batch.greedy(rows, 4)
    before = counters.copy()
    going = [Row(ids[-1], sequence, 4) for sequence, ids in enumerate(begun)]
    rest = batch.greedy(going, 5)
    assert counters.since(before).bytes_written == 0
    assert [[*a, *b] for a, b in zip(begun, rest, strict=True)] == expected
    before = counters.copy()
    assert batch.greedy(going, 5) == rest  # an earlier step than that of the GPU
    assert counters.since(before).bytes_written > 0


def test_only_the_ids_of_sampled_tokens_are_read_back(backend, rng):
    batch, options = (
        backend.batch(4, CONTEXT),
        SamplingParams(temperature=0.9, top_k=40, top_p=0.9, seed=5),
    )
    rows = [Row(int(rng.integers(VOCAB)), sequence, 0) for sequence in range(4)]
    for row in rows:
        batch.begin(row.sequence, options, [])
    batch.sample(rows, 2)
    before = backend.device.counters.copy()
    batch.sample(rows, 8)
    done = backend.device.counters.since(before)
    assert (done.bytes_read, done.maps) == (4 * 4 * 8, 1)
    assert done.buffer_creates + done.bind_group_creates + done.pipeline_creates == 0


def test_a_sequence_ends_at_the_end_of_its_context(backend, rng):
    all_prompts = prompts(rng, CONTEXT - 3, 2)
    long, short = Engine(backend, [], VOCAB).generate_batch(all_prompts, max_tokens=6)
    assert (len(long.ids), long.finish) == (4, "context")
    assert (len(short.ids), short.finish) == (6, "length")


def test_unsupported_batches_are_refused(backend, rng):
    engine = Engine(backend, [], VOCAB)
    assert engine.generate_batch([], max_tokens=1) == []
    with pytest.raises(GenerationError, match="no tokens"):
        engine.generate_batch([[1], []], max_tokens=1)
    with pytest.raises(UsageError, match="sequences"):
        engine.generate_batch(prompts(rng, *[1] * 33), max_tokens=1, sequences=33)
    with pytest.raises(UsageError, match="max_tokens is out of range"):
        engine.generate_batch([[1]], max_tokens=0)
