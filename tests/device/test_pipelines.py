"""Pipelines built ahead in other threads are those that are built on first use."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from rdrr_device import pipelines
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.shaders import Access, Binding
from rdrr_format.errors import DeviceError
from support.deadlines import HANGS
from support.devices import new_device

BINDINGS = (Binding("values", Access.READ_WRITE),)


def kernel(factor: float, *, trusted: bool = False, body: str = "values[i] * FACTOR") -> Kernel:
    """Return a kernel that multiplies 64 values; kernels with the same body share their source."""
    source = f"""override FACTOR: f32;
@group(0) @binding(0) var<storage, read_write> values: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) i: u32) {{ values[i] = {body}; }}
"""
    return Kernel("scale", source, "main", (("FACTOR", factor),), BINDINGS, trusted)


@pytest.fixture
def own_device():
    opened = new_device()
    yield opened
    opened.close()


def run(device, buffer, kernel: Kernel) -> None:
    device.submit([device.bind(Dispatch(kernel, (buffer,), Work(), "scale"))], 1)


@pytest.mark.parametrize("trusted", [False, True])
def test_a_pipeline_built_ahead_is_not_built_again_and_computes_the_same(
    bench, monkeypatch, trusted
):
    device = bench.device
    built = []
    build = pipelines.Pipelines._build

    def counting(self, kernel):
        built.append((kernel, threading.current_thread().name))
        return build(self, kernel)

    monkeypatch.setattr(pipelines.Pipelines, "_build", counting)
    factors = (2.5, 3.5, 2.5)
    kernels = [kernel(factor, trusted=trusted) for factor in factors]
    before = device.counters.copy()
    device.build_ahead(kernels)
    x = bench.upload(np.ones(64, np.float32))
    for each in kernels:
        run(device, x, each)
    np.testing.assert_array_equal(device.read(x).view(np.float32), np.full(64, 2.5 * 3.5 * 2.5))
    assert sorted(each.overrides for each, _ in built) == [(("FACTOR", 2.5),), (("FACTOR", 3.5),)]
    assert device.counters.since(before).pipeline_creates == 2
    device.build_ahead(kernels)
    assert len(built) == 2


def test_an_error_of_a_pipeline_built_ahead_is_raised_when_it_is_needed(bench):
    device = bench.device
    for trusted in (False, True):
        bad = kernel(1.0, trusted=trusted, body="missing[i]")
        device.build_ahead([bad])
        for _ in range(2):
            with pytest.raises(DeviceError, match="building kernel scale"):
                device.pipeline(bad)


def test_a_pipeline_that_no_thread_has_begun_is_built_by_the_caller(bench, monkeypatch):
    """The only thread is held up by the first pipeline, and the second is needed."""
    device, free = bench.device, threading.Event()
    build = pipelines.Pipelines._build

    def waiting(self, kernel):
        if dict(kernel.overrides)["FACTOR"] == 7.0:
            assert free.wait(HANGS)
        return build(self, kernel)

    monkeypatch.setattr(pipelines.Pipelines, "_build", waiting)
    monkeypatch.setattr(pipelines, "MAX_BUILDERS", 1)
    device.build_ahead([kernel(7.0), kernel(8.0)])
    x = bench.upload(np.ones(64, np.float32))
    run(device, x, kernel(8.0))
    free.set()
    run(device, x, kernel(7.0))
    np.testing.assert_array_equal(device.read(x).view(np.float32), np.full(64, 56.0))


def test_closing_a_device_waits_for_the_pipelines_that_are_being_built(own_device, monkeypatch):
    ended = []
    build = pipelines.Pipelines._build

    def slow(self, kernel):
        pipeline = build(self, kernel)
        ended.append(kernel)
        return pipeline

    monkeypatch.setattr(pipelines.Pipelines, "_build", slow)
    monkeypatch.setattr(pipelines, "MAX_BUILDERS", 1)
    own_device.build_ahead([kernel(float(id_)) for id_ in range(10, 60)])
    own_device._pipelines.clear()
    done = len(ended)
    assert done < 50
    assert not own_device._pipelines._ahead
    assert len(ended) == done
