"""Which kernel tests run: compiling their shaders takes most of the time of all tests.

With `RDRR_TEST_DEVICE=dawn` only those that use a device. `RDRR_TEST_SAMPLE=N` keeps N of those in
each file; the choice follows from the seed of the run, and `RDRR_TEST_SAMPLE=N:SEED` repeats
another. The header of the session prints it.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from pathlib import Path

import pytest
from support.devices import on_dawn
from support.seeds import seed_of_run

_COUNT, _, _SEED = os.environ.get("RDRR_TEST_SAMPLE", "").partition(":")
SEED = int(_SEED or seed_of_run())
FOLDER = Path(__file__).parent
DEVICES = {"device", "plain_device"}


def pytest_report_header() -> list[str]:
    return [f"kernel tests: RDRR_TEST_SAMPLE={_COUNT}:{SEED}"] if _COUNT else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [one for one in items if one.path.is_relative_to(FOLDER)]  # the hook is given all tests
    on_device = [one for one in here if DEVICES & set(_fixtures(one))]
    kept = _sample(on_device, int(_COUNT)) if _COUNT else on_device
    left_out = set(here if on_dawn() else on_device).difference(kept)
    config.hook.pytest_deselected(items=[one for one in items if one in left_out])
    items[:] = [one for one in items if one not in left_out]


def _fixtures(test: pytest.Item) -> list[str]:
    found: list[str] = getattr(test, "fixturenames", [])
    # `any_bench` asks for one of the two devices while the test runs.
    return [*found, "device"] if "any_bench" in found else found


def _sample(tests: list[pytest.Item], count: int) -> list[pytest.Item]:
    files: dict[object, list[pytest.Item]] = defaultdict(list)
    for one in tests:
        files[one.path].append(one)
    rng = random.Random(SEED)
    return [one for of in files.values() for one in rng.sample(of, min(count, len(of)))]
