"""Fixtures: one device for all kernel tests, and one with the optional features forced off.

A `conftest.py` imports those that its folder needs.

They are opened on the best adapter, so on a machine with a GPU the tests run there. They take the
exact kernels by default, as software adapters do: hardware multiplies in int8 unless it is told
otherwise, and the bounds of whole models are not for that. Tests of int8 ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rdrr_device.arena import arena
from rdrr_device.device import Device, open_device
from support.gpu import Bench

PLAIN = frozenset({"subgroup", "shader-f16", "timestamp-query"})


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    yield from exact_device(frozenset())


@pytest.fixture(scope="session")
def plain_device() -> Iterator[Device]:
    yield from exact_device(PLAIN)


def exact_device(without: frozenset[str]) -> Iterator[Device]:
    """A device that chooses kernels as a software adapter does."""
    opened = open_device(without=without)
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
    """The op is tested on both devices."""
    name = "bench" if request.param == "all features" else "plain_bench"
    return request.getfixturevalue(name)
