"""Tests of the argmax and the entropy of rows of logits against float64."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_runtime.phases.sampling.argmax_entropy import (
    PICK_BYTES,
    SCRATCH_BYTES,
    argmax_entropy,
    unpack,
)
from rdrr_runtime.sampling.masks import entropies
from support.gpu import Bench, normal
from support.wedlm_reference import picks


def ids_and_entropies(bench: Bench, logits: np.ndarray) -> tuple[list[int], np.ndarray]:
    rows, vocabulary = logits.shape
    phases = argmax_entropy(
        bench.upload(logits),
        bench.arena.empty("scratch", rows * SCRATCH_BYTES),
        answer := bench.poisoned(rows, PICK_BYTES // 4),
        rows=rows,
        vocabulary=vocabulary,
        label="t",
    )
    bench.run(phases, rows)
    return unpack(bench.device.read(answer))


@pytest.mark.parametrize("vocabulary", [1, 37, 49_153])
def test_the_argmax_and_the_entropy_of_each_row_are_found(bench, rng, vocabulary):
    scale = np.array([[0.1], [3.0], [20.0]], np.float32)  # from nearly uniform to nearly certain
    logits = normal(rng, 3, vocabulary) * scale
    ids, entropy = ids_and_entropies(bench, logits)
    expected_ids, expected = picks(logits.astype(np.float64))
    assert ids == expected_ids.tolist()
    assert np.abs(entropy - expected).max() < 1e-4
    assert np.abs(entropies(logits) - expected).max() < 1e-5


def test_masked_logits_add_nothing_and_ties_go_to_the_lower_id(bench, rng):
    logits = np.full((2, 5000), -np.inf, np.float32)
    allowed_ids = np.sort(rng.choice(5000, 8, replace=False))
    logits[0, allowed_ids] = -3.5
    logits[1, allowed_ids[3]] = 1e30
    ids, entropy = ids_and_entropies(bench, logits)
    assert ids == [allowed_ids[0], allowed_ids[3]]
    assert np.allclose(entropy, [np.log(8), 0.0], atol=1e-6)
    assert np.allclose(entropies(logits), [np.log(8), 0.0], atol=1e-6)
