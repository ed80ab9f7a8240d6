"""The GPU's search for Q4_K is the CPU's, bit for bit, where it does not pass a group on."""

from __future__ import annotations

import numpy as np
import pytest
from _gpu_search import GpuSearch
from rdrr_format.codecs._affine import Search, search_groups

SEARCH = Search(-1.0, 0.1, 20)
DRAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape) * 0.02,
    "heavy tails": lambda rng, shape: rng.standard_t(2, shape),
    "positive": lambda rng, shape: rng.random(shape) + 0.5,
    "negative": lambda rng, shape: -rng.random(shape) - 0.5,
    "one value": lambda rng, shape: np.repeat(rng.standard_normal((shape[0], 1)), 32, 1),
    "few values": lambda rng, shape: rng.integers(-3, 4, shape),
    "zeros": lambda _, shape: np.zeros(shape),
}


@pytest.fixture(scope="module")
def gpu():
    search = GpuSearch(100)
    yield search
    search.device.close()


@pytest.mark.parametrize("draw", DRAWS)
def test_scales_minimums_and_choices_have_the_bits_of_the_cpu(gpu, rng, draw):
    groups = DRAWS[draw](rng, (270, 32)).astype(np.float32)  # more than it takes at a time
    gpu.odd = 0
    for found, expected in zip(
        gpu(groups, None, 15, SEARCH), search_groups(groups, None, 15, SEARCH), strict=True
    ):
        assert np.array_equal(found, expected)
    assert gpu.odd == 0


def test_groups_it_does_not_cover_are_left_to_the_cpu(gpu, rng):
    groups = np.exp(8 * rng.standard_normal((200, 32))).astype(np.float32)
    gpu.odd = 0
    for found, expected in zip(
        gpu(groups, None, 15, SEARCH), search_groups(groups, None, 15, SEARCH), strict=True
    ):
        assert np.array_equal(found, expected)
    assert 0 < gpu.odd < 200
