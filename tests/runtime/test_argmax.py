"""Greedy sampling and the step that the GPU advances by itself."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_runtime.phases.argmax import SCRATCH_BYTES, argmax
from support.gpu import Bench, normal


def winner(bench: Bench, logits: np.ndarray, *, single_row: bool = False) -> int:
    rows = len(logits)
    ctx = bench.context(rows)
    made = argmax(
        ctx,
        bench.upload(logits),
        bench.arena.empty("scratch", SCRATCH_BYTES),
        vocabulary=logits.shape[1],
        single_row=single_row,
        label="t",
    )
    bench.run(made, rows)
    return bench.words(ctx.state.tokens)[0]


def test_the_last_row_decides(bench, rng) -> None:
    logits = normal(rng, 3, 501)
    assert winner(bench, logits) == logits[2].argmax()


@pytest.mark.parametrize("vocabulary", [1, 37, 49_152])
def test_any_vocabulary_is_served(bench, rng, vocabulary) -> None:
    logits = normal(rng, 1, vocabulary)
    assert winner(bench, logits) == logits[0].argmax()


def test_ties_go_to_the_lower_id(bench, rng) -> None:
    logits = normal(rng, 1, 40_000)
    places = np.sort(rng.choice(40_000, 5, replace=False))
    logits[0, places] = 9.0
    assert winner(bench, logits) == places[0]


def test_negative_logits_have_a_winner(bench, rng) -> None:
    logits = -np.abs(normal(rng, 1, 100)) - 5
    assert winner(bench, logits) == logits[0].argmax()


def test_masked_logits_never_win(bench) -> None:
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, 123] = -1e9
    assert winner(bench, logits) == 123


def test_the_step_advances_without_the_cpu(bench, rng) -> None:
    """Five rows, then one each; the ring of four wraps around."""
    vocabulary = 300
    logits = normal(rng, 1, vocabulary)
    best = int(logits[0].argmax())
    ctx = bench.context(5, base=10)
    made = argmax(
        ctx,
        bench.upload(logits),
        bench.arena.empty("scratch", SCRATCH_BYTES),
        vocabulary=vocabulary,
        single_row=True,
        label="t",
    )
    state = ctx.state
    bench.run(made, 5)
    assert bench.words(state.step)[:3] == [1, 15, 1]
    assert bench.words(state.positions)[0] == 15
    assert bench.words(state.tokens)[0] == best
    assert bench.words(state.ring)[0] == best
    for _ in range(4):
        bench.run(made, 1)
    assert bench.words(state.step)[:3] == [1, 19, 5]
    assert bench.words(state.positions)[0] == 19
    assert bench.words(state.ring)[:4] == [best] * 4
