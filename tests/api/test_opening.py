"""A package is lowered while its device is being opened, and loads as it would afterwards."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event, current_thread
from time import sleep

import pytest
import rdrr as front
from rdrr import _backends
from rdrr._load_options import LoadOptions
from rdrr._opening import DeviceOpening
from rdrr_device import adapters
from rdrr_device import device as device_module
from rdrr_device.device import Device, open_device
from rdrr_format.errors import DeviceError, FormatError, ManifestError
from rdrr_manifests.package import Package
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.exec.early_plan import EarlyPlan
from rdrr_runtime.exec.plan import Plan
from support.dawn_device import driver_of_dawn, why_no_dawn

WITHOUT = frozenset({"shader-f16", "subgroup"})


@pytest.fixture
def early_plans(monkeypatch) -> list[EarlyPlan]:
    """Collect the early plans of the models that are loaded."""
    plans: list[EarlyPlan] = []
    real = EarlyPlan.make

    def remembering(*arguments, **options):
        plans.append(real(*arguments, **options))
        return plans[-1]

    monkeypatch.setattr(EarlyPlan, "make", remembering)
    return plans


def _results(folder, **options):
    with front.load(folder, context=64, backend="wgpu", **options) as model:
        text = model.generate("And it came to pass", max_tokens=4, temperature=0).read()
        return text, model.info.decisions, model.reason


def _results_without_early_plan(folder):
    def refuse(*_, **__):
        raise DeviceError("not now")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EarlyPlan, "make", refuse)
        return _results(folder)


def _opens(monkeypatch, step, **wishes) -> None:
    """Let each device be opened after a step, with the wishes of `open_adapter`."""
    real = device_module.open_adapter

    def opening(info):
        step()
        return real(info, **wishes)

    monkeypatch.setattr(device_module, "open_adapter", opening)


def test_a_package_is_lowered_while_its_device_is_being_opened(
    shallow_package, monkeypatch, early_plans
):
    expected = _results_without_early_plan(shallow_package)
    is_lowered, waited, compiled = Event(), [], []
    real_passes, real_build = Plan.passes, Device.build_ahead

    def passes(plan, *specs):
        lowered = real_passes(plan, *specs)
        is_lowered.set()
        return lowered

    def build_ahead(device, kernels):
        compiled.append((current_thread().name, kernels))
        real_build(device, kernels)

    monkeypatch.setattr(Plan, "passes", passes)
    monkeypatch.setattr(Device, "build_ahead", build_ahead)
    _opens(monkeypatch, lambda: waited.append(is_lowered.wait(timeout=60)))
    assert _results(shallow_package) == expected
    assert waited == [True]
    thread, kernels = compiled[0]  # what fills the matrices is compiled as soon as possible
    assert thread.startswith("open device")
    assert kernels == early_plans[0].plan.weights.kernels() != ()


def test_a_device_that_can_do_other_things_than_its_adapter_says_has_a_plan_of_its_own(
    shallow_package, monkeypatch, early_plans
):
    usual = _results(shallow_package)
    _opens(monkeypatch, lambda: None, without=WITHOUT)
    others = _results(shallow_package)
    assert others[1] == _results_without_early_plan(shallow_package)[1] != usual[1]
    assert [early.plan.decisions() for early in early_plans] == 2 * [usual[1]]


@pytest.mark.parametrize("has_fault", [False, True])
def test_a_device_that_does_not_open_is_reported_before_what_is_wrong_with_the_plan(
    shallow_package, monkeypatch, has_fault
):
    def refuse(*_, **__):
        raise DeviceError("the adapter does not open a device")

    if has_fault:
        _plans_are_refused(monkeypatch)
        with pytest.raises(FormatError, match="no kernel"):  # the control
            _results(shallow_package)
    _opens(monkeypatch, refuse)
    with pytest.raises(DeviceError, match="does not open a device"):
        _results(shallow_package)
    monkeypatch.setattr(adapters, "choose", refuse)
    with front.load(shallow_package, context=64) as model:
        assert "backend cpu (torch): the adapter does not open a device" in model.reason


@pytest.fixture
def closed(monkeypatch) -> list[Device]:
    """Collect the devices that are closed."""
    devices: list[Device] = []
    real = Device.close

    def remembering(device):
        devices.append(device)
        real(device)

    monkeypatch.setattr(Device, "close", remembering)
    return devices


def test_an_adapter_that_is_missing_is_reported_before_ops_that_rdrr_lacks(
    shallow_package, monkeypatch, closed
):
    def refuse_ops(_):
        raise ManifestError("needs ops that this version of rdrr lacks")

    def refuse_adapter(*_, **__):
        raise DeviceError("no WebGPU adapter on this machine")

    monkeypatch.setattr(Package, "graph", property(refuse_ops))
    with pytest.raises(ManifestError, match="ops"):  # the control
        _results(shallow_package)
    assert len(closed) == 1
    monkeypatch.setattr(adapters, "choose", refuse_adapter)
    with pytest.raises(DeviceError, match="no WebGPU adapter"):
        _results(shallow_package)


def test_a_device_is_closed_if_what_was_tuned_for_it_cannot_be_read(
    shallow_package, monkeypatch, closed
):
    def refuse(_):
        raise MemoryError

    # The adapter is not known early, so that only what is read for the device is refused.
    monkeypatch.setattr(DeviceOpening, "adapter", lambda _: None)
    monkeypatch.setattr(_backends, "read_profile", refuse)
    with pytest.raises(MemoryError):
        _results(shallow_package)
    assert len(closed) == 1


def test_adapters_are_dropped_before_another_thread_lists_them(monkeypatch):
    class Listed(list):
        """Adapters that can be referred to weakly."""

    same, earlier, dropped = adapters.list_adapters(), [], []

    def listing(_):
        dropped.extend(reference() is None for reference in earlier)
        listed = Listed(same)
        earlier[:] = [weakref.ref(listed)]
        sleep(0.01)
        return listed

    monkeypatch.setattr(adapters, "list_adapters", listing)
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(adapters.choose, 8 * ["wgpu"])] == 8 * [adapters.choose_adapter(same)]
    assert dropped == 7 * [True]


def test_a_device_is_closed_if_no_thread_can_compile_its_kernels(
    shallow_package, monkeypatch, closed
):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Device, "build_ahead", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        _results(shallow_package)
    assert len(closed) == 1


def test_a_device_is_closed_if_the_wait_for_it_is_interrupted(monkeypatch, closed):
    with closing(DeviceOpening(LoadOptions(backend="wgpu"))) as opening:
        with monkeypatch.context() as patch:
            patch.setattr(opening._opened, "result", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                opening.take()
        assert closed == []
    assert len(closed) == 1


def _interrupt() -> None:
    raise KeyboardInterrupt


def _plans_are_refused(monkeypatch) -> None:
    def refuse(*_, **__):
        raise FormatError("no kernel can read a matrix")

    monkeypatch.setattr(Plan, "__init__", refuse)


def test_models_that_are_loaded_at_once_in_threads_have_plans_of_their_own(
    shallow_package, early_plans
):
    expected = _results_without_early_plan(shallow_package)
    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(_results, 3 * [shallow_package])] == 3 * [expected]
    assert len({id(early.plan) for early in early_plans}) == 3


def test_a_plan_that_reads_tables_on_the_host_is_made_once_shards_are_being_checked(
    shallow_package, monkeypatch, early_plans
):
    on_host = Policy(keeps_tables_on_host=True)
    monkeypatch.setattr(_backends, "table_policies", lambda *_: (on_host,))
    _results(shallow_package)
    assert early_plans == []


@pytest.mark.thorough
def test_adapters_of_dawn_say_what_their_devices_can_do(shallow_package, early_plans):
    why = why_no_dawn()
    if why is not None:
        pytest.skip(why)
    with driver_of_dawn():
        decisions = _results(shallow_package, webgpu="dawn")[1]
        with closing(open_device(webgpu="dawn")) as device:
            assert device.capabilities == device.info.capabilities
    assert early_plans[0].plan.decisions() == decisions
