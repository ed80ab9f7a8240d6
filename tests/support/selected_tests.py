"""Which tests run: all of them, unless the environment asks for fewer.

`RDRR_TEST_COVER=1`, which `make test` sets, leaves out the tests that are marked `thorough`. Of the
kernel tests of each file, and of the cases of each test that is marked `cover`, it keeps a cover
(`support.covers`). `RDRR_TEST_SAMPLE=N` keeps N kernel tests of each file; the choice follows from
the seed of the run, and `RDRR_TEST_SAMPLE=N:SEED` repeats another. With `RDRR_TEST_DEVICE=dawn`
only those tests of kernels run that use a device. Every run reads this module, so it imports
nothing that takes long.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path

import pytest
from support.covers import cover, function_of
from support.seeds import seed_of_run

COVER, SAMPLE = "RDRR_TEST_COVER", "RDRR_TEST_SAMPLE"
TESTS = Path(__file__).parents[1]
KERNELS = TESTS / "runtime" / "phases"
DEVICES = {"device", "plain_device"}


def on_dawn() -> bool:
    """Return whether the fixtures open devices on Dawn."""
    return os.environ.get("RDRR_TEST_DEVICE") == "dawn"


def is_covering() -> bool:
    """Return whether the tests of `make test` run, rather than all."""
    return bool(os.environ.get(COVER))


def wanted_sample() -> tuple[int, int] | None:
    """Return the number of tests of each file and the seed; None if all tests run."""
    count, _, seed = os.environ.get(SAMPLE, "").partition(":")
    return (int(count), int(seed or seed_of_run())) if count else None


def left_out(tests: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that do not run."""
    selected = everything = [*tests]
    if on_dawn():
        selected = [test for test in selected if not _is_kernel(test) or _compiles(test)]
    sample = wanted_sample()
    if sample is not None:
        selected = _sampled(selected, *sample)
    if is_covering():
        selected = _covered(selected)
    return set(everything).difference(selected)


def _is_kernel(test: pytest.Item) -> bool:
    return test.path.is_relative_to(KERNELS)


def _compiles(test: pytest.Item) -> bool:
    fixtures: list[str] = getattr(test, "fixturenames", [])
    # `any_bench` asks for one of the two devices while the test runs.
    return bool({*DEVICES, "any_bench"}.intersection(fixtures))


def _sampled(tests: list[pytest.Item], count: int, seed: int) -> list[pytest.Item]:
    rng = random.Random(seed)
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    kernels = [test for test in tests if _is_kernel(test) and _compiles(test)]
    for test in kernels:
        files[test.path].append(test)
    sample = [test for file in files.values() for test in rng.sample(file, min(count, len(file)))]
    return [*sample, *set(tests).difference(kernels)]


def _covered(tests: list[pytest.Item]) -> list[pytest.Item]:
    groups: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for test in tests:
        if test.get_closest_marker("thorough") is None:
            groups[_group(test)].append(test)
    alone = groups.pop(None, [])
    return [*alone, *(test for group in groups.values() for test in cover(group))]


def _group(test: pytest.Item) -> Hashable:
    """Return the file or function whose tests have a cover; None for a test that runs anyway."""
    if _is_kernel(test):
        return test.path
    return function_of(test) if test.get_closest_marker("cover") else None
