"""Which kernel tests run on Dawn, whose driver compiles slowly.

With `RDRR_TEST_DEVICE=dawn` only those that use a device. `RDRR_TEST_SAMPLE=N` keeps N of each
file; the choice is new in each run, the header of the session prints its seed, and
`RDRR_TEST_SAMPLE=N:SEED` repeats it.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import defaultdict

import pytest
from support.devices import on_dawn

_COUNT, _, _SEED = os.environ.get("RDRR_TEST_SAMPLE", "").partition(":")
SEED = int(_SEED or secrets.randbits(32))
DEVICES = {"device", "plain_device"}


def pytest_report_header() -> list[str]:
    return [f"kernel tests: RDRR_TEST_SAMPLE={_COUNT}:{SEED}"] if _COUNT else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = [one for one in items if not on_dawn() or DEVICES & set(_fixtures(one))]
    if _COUNT:
        kept = _sample(kept, int(_COUNT))
    names = {one.nodeid for one in kept}
    config.hook.pytest_deselected(items=[one for one in items if one.nodeid not in names])
    items[:] = [one for one in items if one.nodeid in names]


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
