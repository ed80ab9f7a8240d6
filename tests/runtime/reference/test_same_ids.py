"""Greedy ids of tests may differ where two logits are equal, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rdrr_runtime.reference.backend import CpuBackend
from support import choices
from support.choices import assert_same_ids
from support.packages import VOCAB, llama_manifest, write_random_package


@pytest.fixture
def package(tmp_path, rng):
    return write_random_package(tmp_path, llama_manifest("F32", embedding="F32"), rng)


def test_equal_ids_pass_and_another_id_fails(package, rng):
    prompt = rng.integers(0, VOCAB, 5).tolist()
    expected = CpuBackend(package, context=20).greedy(prompt, 0, 6)
    assert_same_ids(expected, expected, prompt, package)
    wrong = [*expected[:3], (expected[3] + 1) % VOCAB, *expected[4:]]
    with pytest.raises(AssertionError, match="id 3 is"):
        assert_same_ids(wrong, expected, prompt, package)
    with pytest.raises(AssertionError):
        assert_same_ids(expected[:4], expected, prompt, package)


def test_ids_behind_a_tie_are_not_compared(package, rng, monkeypatch):
    prompt = rng.integers(0, VOCAB, 5).tolist()
    expected = CpuBackend(package, context=20).greedy(prompt, 0, 6)
    other = (expected[2] + 1) % VOCAB

    class Tied(CpuBackend):
        """A model whose logits of two ids differ by a part of the largest."""

        apart = 0.5

        def logits(self, *args: Any) -> np.ndarray:
            values = super().logits(*args)
            values[0, other] = (
                values[0, expected[2]] + np.abs(values).max() * choices.TIE * self.apart
            )
            return values

    monkeypatch.setattr(choices, "CpuBackend", Tied)
    ids = [*expected[:2], other, 0]
    assert_same_ids(ids, expected, prompt, package)
    monkeypatch.setattr(Tied, "apart", 2.0)
    with pytest.raises(AssertionError, match="id 2 is"):
        assert_same_ids(ids, expected, prompt, package)
