"""Which tests run: a sample of those that compile shaders for many cases, if one is asked for.

`RDRR_TEST_SAMPLE=N` keeps N of them in each file; the choice follows from the seed of the run, and
`RDRR_TEST_SAMPLE=N:SEED` repeats another. With `RDRR_TEST_DEVICE=dawn` only those tests of kernels
run that use a device. Every run reads this module, so it imports nothing that takes long.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.seeds import seed_of_run

VARIABLE = "RDRR_TEST_SAMPLE"
TESTS = Path(__file__).parents[1]
KERNELS = TESTS / "runtime" / "phases"
COMPILING = (
    KERNELS,
    TESTS / "end_to_end" / "test_against_transformers.py",
    TESTS / "end_to_end" / "test_default_limits.py",
    TESTS / "runtime" / "test_joined_feed_forwards.py",
    TESTS / "runtime" / "test_small_limits.py",
)
"""Folders and files with many cases that compile shaders of their own. With an empty cache they
take two fifths of the time of all tests, even with no more than 40 tests of kernels in a file."""

DEVICES = {"device", "plain_device"}


def on_dawn() -> bool:
    """Return whether the fixtures open devices on Dawn."""
    return os.environ.get("RDRR_TEST_DEVICE") == "dawn"


def wanted_sample() -> tuple[int, int] | None:
    """Return the number of tests of each file and the seed; None if all tests run."""
    count, _, seed = os.environ.get(VARIABLE, "").partition(":")
    return (int(count), int(seed or seed_of_run())) if count else None


def left_out(tests: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that do not run."""
    here = [one for one in tests if any(map(one.path.is_relative_to, COMPILING))]
    compiling = [one for one in here if _compiles(one)]
    wanted = wanted_sample()
    kept = compiling if wanted is None else _sample(compiling, *wanted)
    kernels = [one for one in here if one.path.is_relative_to(KERNELS)]
    return {*compiling, *(kernels if on_dawn() else ())}.difference(kept)


def _compiles(test: pytest.Item) -> bool:
    """Return whether a test compiles shaders: of those of kernels, each that uses a device."""
    fixtures: list[str] = getattr(test, "fixturenames", [])
    # `any_bench` asks for one of the two devices while the test runs.
    uses_device = {*DEVICES, "any_bench"}.intersection(fixtures)
    return bool(uses_device) or not test.path.is_relative_to(KERNELS)


def _sample(tests: list[pytest.Item], count: int, seed: int) -> list[pytest.Item]:
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for one in tests:
        files[one.path].append(one)
    rng = random.Random(seed)
    return [one for of in files.values() for one in rng.sample(of, min(count, len(of)))]
