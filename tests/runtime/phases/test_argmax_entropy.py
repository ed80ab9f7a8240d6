"""The most probable id and the entropy of rows of logits, held to float64."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_runtime.phases.argmax_entropy import PICK_BYTES, SCRATCH_BYTES, argmax_entropy, unpack
from rdrr_runtime.sampling.entropy import entropies
from support.gpu import Bench, normal
from support.wedlm_reference import picks


def looked_at(bench: Bench, logits: np.ndarray) -> tuple[list[int], np.ndarray]:
    rows, vocabulary = logits.shape
    made = argmax_entropy(
        bench.upload(logits),
        bench.arena.empty("scratch", rows * SCRATCH_BYTES),
        answer := bench.poisoned(rows, PICK_BYTES // 4),
        rows=rows,
        vocabulary=vocabulary,
        label="t",
    )
    bench.run(made, rows)
    return unpack(bench.device.read(answer))


@pytest.mark.parametrize("vocabulary", [1, 37, 49_153])
def test_each_row_has_its_id_and_entropy(bench, rng, vocabulary):
    scale = np.array([[0.1], [3.0], [20.0]], np.float32)  # from even to all but certain
    logits = normal(rng, 3, vocabulary) * scale
    ids, entropy = looked_at(bench, logits)
    expected_ids, expected = picks(logits.astype(np.float64))
    assert ids == expected_ids.tolist()
    assert np.abs(entropy - expected).max() < 1e-4
    assert np.abs(entropies(logits) - expected).max() < 1e-5


def test_what_is_masked_adds_nothing_and_equal_logits_go_to_the_lower_id(bench, rng):
    logits = np.full((2, 5000), -np.inf, np.float32)
    places = np.sort(rng.choice(5000, 8, replace=False))
    logits[0, places] = -3.5
    logits[1, places[3]] = 1e30
    ids, entropy = looked_at(bench, logits)
    assert ids == [places[0], places[3]]
    assert np.allclose(entropy, [np.log(8), 0.0], atol=1e-6)
    assert np.allclose(entropies(logits), [np.log(8), 0.0], atol=1e-6)
