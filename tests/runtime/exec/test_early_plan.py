"""Plans that are made while a device is being opened equal those that are made on it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from rdrr_device.device import Device
from rdrr_format.errors import DeviceError, UsageError
from rdrr_manifests.package import Package
from rdrr_runtime.compile.choice.hints import Policy, resolve
from rdrr_runtime.exec.early_plan import EarlyPlan
from rdrr_runtime.gpu import GpuBackend
from support.packages import llama_manifest, write_random_package
from support.seeds import generator_of

CONTEXT = 64
IDS = [1, 5, 9, 2]
INT8 = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}})


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("early")
    manifest = llama_manifest("Q4_K", "column", layers=2)
    return write_random_package(folder, manifest, generator_of(request))


def _early(package, capabilities, policy=None) -> EarlyPlan:
    policy = policy or Policy()
    early = EarlyPlan.make(package, capabilities, policy, context=CONTEXT, kv_dtype="f16")
    early.plan.passes()
    return early


def _results(package, device, early=None):
    with closing(GpuBackend(package, context=CONTEXT, device=device, early=early)) as backend:
        return backend.greedy(IDS, 0, 8), backend.info


def test_a_model_with_an_early_plan_decides_and_generates_as_without(package, device):
    expected, live = _results(package, device), device.memory.live
    early = _early(package, device.capabilities)
    assert device.memory.live == live
    assert _results(package, device, early) == expected
    assert device.memory.live == live


def test_no_weight_is_read_before_the_device_is_open(package, device, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a weight was read")

    with monkeypatch.context() as patch:
        for name in ("read", "dequantize", "read_rows"):
            patch.setattr(Package, name, refuse)
        early = _early(package, device.capabilities)
        with pytest.raises(AssertionError, match="a weight"):  # the control
            GpuBackend(package, context=CONTEXT, device=device)
    assert _results(package, device, early) == _results(package, device)


def test_an_early_plan_for_other_capabilities_is_not_used(package, device):
    other = device.capabilities.without("shader-f16", "subgroup")
    early, expected = _early(package, other), _results(package, device)
    assert early.plan.decisions() != expected[1].decisions
    assert _results(package, device, early) == expected


@pytest.mark.parametrize("label", [".rows", ".rope.0"])
def test_memory_that_ends_is_reported_as_without_an_early_plan(package, device, monkeypatch, label):
    policy, live = replace(INT8, keeps_rounded=True), device.memory.live
    real = Device.create_buffer

    def create(device, name, size):
        if name.endswith(label):
            raise DeviceError("memory is exhausted", where=name)
        return real(device, name, size)

    monkeypatch.setattr(Device, "create_buffer", create)
    errors = []
    for early in (None, _early(package, device.capabilities, policy)):
        with pytest.raises(DeviceError, match="exhausted") as caught:
            GpuBackend(package, context=CONTEXT, device=device, policy=policy, early=early)
        errors.append(str(caught.value))
        assert device.memory.live == live
    assert errors[0] == errors[1]
    assert ("`rounded_weights` shared" in errors[0]) == (label == ".rows")


def test_what_a_plan_refuses_is_refused_early(package, device):
    with pytest.raises(UsageError, match="KV dtype"):
        EarlyPlan.make(package, device.capabilities, Policy(), context=CONTEXT, kv_dtype="f8")
