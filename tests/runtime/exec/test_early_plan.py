"""Plans that are made while a device is being opened equal those that are made on it."""

from __future__ import annotations

from contextlib import closing

import pytest
from rdrr_format.errors import UsageError
from rdrr_manifests.package import Package
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.exec.early_plan import EarlyPlan
from rdrr_runtime.gpu import GpuBackend
from support.packages import llama_manifest, write_random_package
from support.seeds import generator_of

CONTEXT = 64
IDS = [1, 5, 9, 2]


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("early")
    return write_random_package(folder, llama_manifest(), generator_of(request))


def _early(package, capabilities) -> EarlyPlan:
    return EarlyPlan.make(package, capabilities, Policy(), context=CONTEXT, kv_dtype="f16")


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


def test_what_a_plan_refuses_is_refused_early(package, device):
    with pytest.raises(UsageError, match="KV dtype"):
        EarlyPlan.make(package, device.capabilities, Policy(), context=CONTEXT, kv_dtype="f8")
