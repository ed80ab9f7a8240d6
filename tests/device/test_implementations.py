"""A device on Dawn is one on wgpu in all but the implementation, and both fit into one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from threading import Thread
from types import ModuleType

import numpy as np
import pytest
from rdrr_device.arena import arena
from rdrr_device.device import Device, open_device
from rdrr_device.implementations import NAMES, implementation, is_installed
from rdrr_device.implementations.dawn import VERSION, DawnImplementation
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.pass_timer import timed
from rdrr_device.shaders import Access, Binding, WgslCompiler, for_compiler
from rdrr_device.timestamps import Timer
from rdrr_device.uploads import UploadBuffer
from rdrr_format.errors import DeviceError, UsageError
from rdrr_format.extras import EXTRAS, install_hint
from support.commands import ROOT
from support.dawn_device import open_dawn_device, why_no_dawn

BINDINGS = (Binding("values", Access.READ_WRITE),)


def kernel(factor: float, index: str = "i", *, trusted: bool = False) -> Kernel:
    """Return a kernel that multiplies 64 values."""
    source = f"""@group(0) @binding(0) var<storage, read_write> values: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) i: u32) {{ values[{index}] *= {factor}; }}
"""
    return Kernel("scale", source, "main", (), BINDINGS, trusted)


@pytest.fixture(scope="module")
def dawn() -> Iterator[Device]:
    why = why_no_dawn()
    if why is not None:
        pytest.skip(why)
    opened = open_dawn_device()
    yield opened
    opened.close()


def scaled(device: Device) -> np.ndarray:
    with arena(device) as buffers:
        values = buffers.upload("values", np.arange(64, dtype=np.float32))
        bound = device.bind(Dispatch(kernel(1.5), (values,), Work(), "t"))
        device.submit([bound], 1, times=2)
        return device.read(values).view(np.float32)


def test_both_are_open_in_one_process_and_compute_the_same(dawn):
    with closing(open_device()) as other:
        assert (dawn.info.implementation, other.info.implementation) == ("dawn", "wgpu")
        for _ in range(2):
            for device in (dawn, other):
                np.testing.assert_array_equal(scaled(device), 2.25 * np.arange(64))
    np.testing.assert_array_equal(scaled(dawn), 2.25 * np.arange(64))


def test_features_and_language_have_the_names_that_plans_ask_for(dawn):
    assert {"subgroup", "shader-f16", "timestamp-query"} <= dawn.features
    assert "packed_4x8_integer_dot_product" in dawn.capabilities.language
    with closing(open_dawn_device(frozenset({"subgroup"}))) as without:
        assert without.features == {"shader-f16", "timestamp-query"}
        assert "subgroups" not in without.wgpu.features


def test_uploads_and_both_timers_work(dawn):
    with arena(dawn) as buffers:
        values = buffers.empty("values", 256)
        upload = UploadBuffer(dawn, "upload", 256)
        for number in (1.0, 2.0):
            upload.write(values, [np.full(64, number, np.float32)])
            bound = dawn.bind(Dispatch(kernel(1.5), (values,), Work(), "t"))
            assert (Timer(dawn).run([[bound], [bound]], 1).seconds > 0).all()
            with timed(dawn) as timer:
                dawn.submit([bound], 1)
                assert 0 < timer.collect() < 1
            expected = np.full(64, number * 1.5**3, np.float32)
            np.testing.assert_array_equal(dawn.read(values).view(np.float32), expected)
        upload.close()


def test_a_trusted_kernel_on_dawn_keeps_its_index_checks(dawn):
    """Dawn omits them for a whole device only, on which other kernels rely on them."""
    with arena(dawn) as buffers:
        values = buffers.upload("values", np.ones(64, np.float32))
        beyond = kernel(2.0, "i + 0x10000000u", trusted=True)
        dawn.submit([dawn.bind(Dispatch(beyond, (values,), Work(), "t"))], 1)
        assert dawn.read(values).view(np.float32)[:-1].tolist() == [1.0] * 63


def test_a_thread_gets_the_errors_of_its_own_calls(dawn):
    right: list[str] = []
    wrong: list[str] = []

    def valid() -> None:
        for _ in range(100):
            try:
                dawn.free_buffer(dawn.create_buffer("buffer", 64))
            except DeviceError as error:
                right.append(str(error))

    def invalid() -> None:
        for number in range(100):
            try:
                dawn.pipeline(kernel(1.0, f"missing{number}"))
            except DeviceError as error:
                wrong.append(str(error))

    threads = [Thread(target=target) for target in (valid, invalid, valid, invalid)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == []
    assert len(wrong) == 200
    assert all("building kernel scale failed" in line and "missing" in line for line in wrong)


def test_a_lost_device_is_reported_in_the_same_words(dawn):
    opened = open_dawn_device()
    with arena(opened) as buffers:
        values = buffers.upload("values", np.ones(64, np.float32))
        opened.wgpu.destroy()
        for call in (opened.wait, lambda: opened.read(values), lambda: buffers.empty("b", 64)):
            with pytest.raises(DeviceError, match="the GPU device was lost while"):
                call()
    scaled(dawn)  # the control: another device of the implementation goes on


def test_dawn_is_missing_until_its_extra_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "wgpudawn", None)
    assert not is_installed("dawn")
    assert is_installed("wgpu")
    with pytest.raises(UsageError, match="`webgpu` dawn needs the package wgpudawn") as caught:
        DawnImplementation()
    assert str(caught.value).endswith(install_hint("dawn"))
    assert EXTRAS["dawn"] == (f"wgpudawn=={VERSION}",)


def test_another_version_of_wgpudawn_is_refused_if_it_lacks_what_is_needed(monkeypatch):
    other = ModuleType("wgpudawn")
    other.__version__ = "9.9"
    monkeypatch.setitem(sys.modules, "wgpudawn", other)
    monkeypatch.setitem(sys.modules, "wgpudawn.backends.dawn", None)
    with pytest.raises(DeviceError, match="this version of the package wgpudawn") as caught:
        DawnImplementation()
    assert f"expected {VERSION}, found 9.9" in str(caught.value)
    assert "`webgpu` wgpu" in str(caught.value)


def test_only_modules_of_passes_in_one_dispatch_switch_an_analysis_off():
    plain = "// not @coherent\nvar<storage, read_write> x: array<u32>;\nfn f() {}\n"
    coherent = plain.replace("var", "@coherent\nvar")
    assert for_compiler(coherent, WgslCompiler.NAGA) == coherent
    assert for_compiler(plain, WgslCompiler.TINT) == plain
    enabled = "enable chromium_disable_uniformity_analysis;\n"
    assert for_compiler(coherent, WgslCompiler.TINT) == enabled + plain


def test_the_packages_of_implementations_are_imported_behind_the_interface_only():
    inside = ROOT / "device/rdrr_device/implementations"
    folders = ("format", "device", "manifests", "converter", "runtime", "api")
    importing = {
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.split()[:1] in (["import"], ["from"])
        and line.split()[1].split(".")[0] in ("wgpu", "wgpudawn")
    }
    assert importing == {inside / "wgpu.py", inside / "dawn.py"}


def test_each_implementation_is_loaded_once():
    assert NAMES == ("wgpu", "dawn")
    assert implementation("wgpu") is implementation("wgpu")
