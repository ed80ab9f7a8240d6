"""Tests of greedy sampling and of the step that advances on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.errors import FormatError
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.generation_state import HEADER_WORDS, ROW_WORDS, State
from rdrr_runtime.phases.sampling.argmax import SCRATCH_BYTES, argmax
from rdrr_runtime.phases.sampling.batch_advance import MAX_ROWS, batch_advance
from rdrr_runtime.records import pack_step
from support.gpu import Bench, normal


def argmax_of(bench: Bench, logits: np.ndarray) -> int:
    ctx = bench.context(1)
    phases = argmax(
        ctx.state,
        bench.upload(logits),
        bench.arena.empty("scratch", SCRATCH_BYTES),
        vocabulary=logits.size,
        label="t",
    )
    bench.run(phases, 1)
    return next_row(bench, ctx)[0]


def next_row(bench: Bench, ctx: OpContext) -> list[int]:
    """Return token, position, sequence and slot of the first row of the step."""
    return bench.words(ctx.state.step)[HEADER_WORDS : HEADER_WORDS + ROW_WORDS]


@pytest.mark.parametrize("vocabulary", [1, 37, 49_152])
def test_the_argmax_is_found_for_any_vocabulary_size(bench, rng, vocabulary) -> None:
    logits = normal(rng, vocabulary)
    assert argmax_of(bench, logits) == logits.argmax()


def test_ties_go_to_the_lower_id(bench, rng) -> None:
    logits = normal(rng, 40_000)
    tied_ids = np.sort(rng.choice(40_000, 5, replace=False))
    logits[tied_ids] = 9.0
    assert argmax_of(bench, logits) == tied_ids[0]


def test_the_argmax_of_negative_logits_is_found(bench, rng) -> None:
    logits = -np.abs(normal(rng, 100)) - 5
    assert argmax_of(bench, logits) == logits.argmax()


def test_masked_logits_never_win(bench) -> None:
    logits = np.full(300, -np.inf, np.float32)
    logits[123] = -1e9
    assert argmax_of(bench, logits) == 123


def test_the_step_advances_without_the_cpu(bench, rng) -> None:
    """The first pass has five rows, later ones have one row; the ring of four ids wraps around."""
    logits = normal(rng, 300)
    best = int(logits.argmax())
    positions, sequences = [7, 3, 90, 41, 20], [2] * 5
    ctx = bench.context(5, base=10, positions=positions, sequences=sequences)
    phases = argmax(
        ctx.state,
        bench.upload(logits),
        bench.arena.empty("scratch", SCRATCH_BYTES),
        vocabulary=300,
        label="t",
    )
    state = ctx.state
    bench.run(phases, 5)
    assert bench.words(state.step)[:2] == [1, 1]
    assert next_row(bench, ctx) == [best, 21, 2, 15]
    assert bench.words(state.ring)[:4] == [best, 0, 0, 0]
    for _ in range(4):
        bench.run(phases, 1)
    assert bench.words(state.step)[:2] == [1, 5]
    assert next_row(bench, ctx) == [best, 25, 2, 19]
    assert bench.words(state.ring)[:4] == [best] * 4


def test_each_row_of_a_batch_continues_with_its_own_pick(bench, rng) -> None:
    """Run three rows three times in a pass for up to four rows; the ring holds two passes."""
    ids, next_ids = [5, 900, 31, 77], [6, 901, 32, 78]
    state = State.create(bench.arena, 4, ring=8)
    step = pack_step([0] * 3, [4, 9, 60], positions=[8, 2, 70], sequences=[3, 0, 1])
    bench.device.write(state.step, step)
    picks = bench.upload(with_entropies(rng, ids))
    phases = batch_advance(state, picks, rows=4, steps=2, label="t")
    bench.run(phases, 3)
    bench.run(phases, 3)
    bench.device.write(picks, with_entropies(rng, next_ids))
    bench.run(phases, 3)
    words = bench.words(state.step)
    assert words[:2] == [3, 3]
    rows = np.array(words[HEADER_WORDS:]).reshape(4, ROW_WORDS)
    assert rows[:3].tolist() == [[6, 11, 3, 7], [901, 5, 0, 12], [32, 73, 1, 63]]
    assert rows[3].tolist() == [0] * ROW_WORDS
    assert bench.words(state.ring) == [*next_ids[:3], 0, *ids[:3], 0]


def with_entropies(rng: np.random.Generator, ids: list[int]) -> np.ndarray:
    return np.array([(id_, rng.integers(2**32)) for id_ in ids], np.uint32)


def test_more_rows_than_a_workgroup_has_threads_are_refused(bench) -> None:
    state = State.create(bench.arena, MAX_ROWS + 1, ring=MAX_ROWS + 1)
    picks = bench.arena.empty("picks", 8 * (MAX_ROWS + 1))
    batch_advance(state, picks, rows=MAX_ROWS, steps=1, label="t")  # the control
    with pytest.raises(FormatError, match="too many rows"):
        batch_advance(state, picks, rows=MAX_ROWS + 1, steps=1, label="t")
