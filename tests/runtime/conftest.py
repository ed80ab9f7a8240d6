"""One device for all kernel tests, and one with the optional features forced off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rdrr_runtime.buffers import arena
from rdrr_runtime.device import Device, open_device
from support.gpu import Bench

PLAIN = frozenset({"subgroup", "shader-f16", "timestamp-query"})


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    opened = open_device()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def plain_device() -> Iterator[Device]:
    opened = open_device(without=PLAIN)
    yield opened
    opened.close()


@pytest.fixture
def bench(device: Device) -> Iterator[Bench]:
    with arena(device, "test") as buffers:
        yield Bench(device, buffers)


@pytest.fixture
def plain_bench(plain_device: Device) -> Iterator[Bench]:
    with arena(plain_device, "test") as buffers:
        yield Bench(plain_device, buffers)


@pytest.fixture(params=["all features", "no optional features"])
def any_bench(request: pytest.FixtureRequest) -> Bench:
    """The op is tested on both devices."""
    name = "bench" if request.param == "all features" else "plain_bench"
    return request.getfixturevalue(name)
