"""Fixtures: one device for all kernel tests, and one with the optional features forced off.

A `conftest.py` imports the fixtures that its folder needs.

The devices use the best adapter, so tests run on the GPU where there is one. They use the exact
kernels by default, as software adapters do: on hardware the default is to multiply in int8, for
which the bounds of whole models are too tight. Tests of int8 ask for it.

With `RDRR_TEST_DEVICE=dawn` in the environment the devices are those of Dawn in Node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rdrr_device.arena import arena
from rdrr_device.capabilities import DEFAULT_LIMITS
from rdrr_device.device import Device, open_device
from support.dawn_device import open_dawn_device
from support.gpu import Bench
from support.selected_tests import on_dawn

PLAIN = frozenset({"subgroup", "shader-f16", "timestamp-query"})

SMALL_LIMITS = {**DEFAULT_LIMITS, "max-storage-buffer-binding-size": 128 << 10}
"""A binding of 128 KiB instead of 128 MiB: the models of tests have about a thousandth of the bytes
of real ones, and their matrices must be split as well."""


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    yield from exact_device(frozenset())


@pytest.fixture(scope="session")
def plain_device() -> Iterator[Device]:
    yield from exact_device(PLAIN)


def exact_device(without: frozenset[str]) -> Iterator[Device]:
    """Open a device that selects kernels as on a software adapter."""
    opened = open_dawn_device(without) if on_dawn() else open_device(without=without)
    opened.info = replace(opened.info, software=True)
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
    """Run the test on the device with all features and on the one without optional features."""
    name = "bench" if request.param == "all features" else "plain_bench"
    return request.getfixturevalue(name)
