"""A short run of `make soak`, and proof that it notices a leak."""

from __future__ import annotations

import pytest
import soak
from soak import BOUNDS, Sample, excess, growth, samples

ROUNDS = 3


@pytest.mark.thorough
def test_loads_generations_and_closes_leave_nothing_behind(made_package, rng):
    seed = int(rng.integers(0, 1 << 30))
    rounds = list(samples(made_package, seed, lambda done: done < ROUNDS, calls=1))
    assert len(rounds) == ROUNDS
    assert excess(growth(rounds)) == []


@pytest.mark.parametrize("name", ["memory", "files", "threads"])
def test_steady_growth_is_reported_and_a_cache_that_fills_up_is_not(name):
    bound = getattr(BOUNDS, name)

    def sample_of(value: int) -> Sample:
        return Sample(**{"memory": 0, "files": 0, "threads": 0} | {name: value})

    leaking = [sample_of(at * (bound + 1)) for at in range(30)]
    assert [exces.split()[0] for exces in excess(growth(leaking))] == [name]
    full = [sample_of(min(at, 9) * (bound + 1)) for at in range(30)]
    assert excess(growth(full)) == []
    assert soak.sample().files > 0
