"""Opening devices, copying bytes, counting work, and error messages."""

from __future__ import annotations

import os
from contextlib import closing

import numpy as np
import pytest
from rdrr_device import adapters
from rdrr_device.adapters import AdapterInfo, choose_adapter, list_adapters
from rdrr_device.arena import arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import open_device
from rdrr_device.kernels import Dispatch, Work
from rdrr_device.readback import Fetch, Readback
from rdrr_format.errors import DeviceError
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.rows.copy import copy
from rdrr_runtime.phases.rows.elementwise import scale


def fake(name: str, kind: str, backend: str = "Vulkan") -> AdapterInfo:
    return AdapterInfo(name, backend, kind, "", frozenset(), {}, kind == "CPU")


def test_a_discrete_gpu_is_preferred_and_software_comes_last() -> None:
    adapter_list = [
        fake("soft", "CPU"),
        fake("card", "DiscreteGPU", "OpenGL"),
        fake("chip", "IntegratedGPU"),
        fake("card", "DiscreteGPU"),
    ]
    ordered = sorted(adapter_list, key=adapters._preference)
    assert [adapter.name for adapter in ordered] == ["card", "chip", "soft", "card"]
    assert choose_adapter(ordered).backend == "Vulkan"


def test_an_adapter_is_chosen_by_part_of_its_name_in_any_case() -> None:
    pair = [fake("NVIDIA H200", "DiscreteGPU"), fake("llvmpipe", "CPU")]
    assert choose_adapter(pair, "LLVM").software
    assert not choose_adapter(pair, "h200").software
    with pytest.raises(DeviceError, match="NVIDIA H200 or llvmpipe"):
        choose_adapter(pair, "radeon")


def test_no_adapter_says_what_to_install() -> None:
    with pytest.raises(DeviceError, match=r"install a Vulkan driver .*mesa-vulkan-drivers\)$"):
        choose_adapter([])


def test_adapters_are_described() -> None:
    first = list_adapters()[0]
    assert first.name
    assert first.limits["max-buffer-size"] > 0


def test_limits_are_raised_to_those_of_the_adapter(device) -> None:
    for name in ("max-storage-buffer-binding-size", "max-compute-workgroup-storage-size"):
        assert device.limits[name] == device.info.limits[name]


def test_features_can_be_disabled() -> None:
    with closing(open_device(without=frozenset({"subgroup"}))) as opened:
        assert "subgroup" not in opened.features


def test_bytes_are_read_as_they_were_written(bench, rng) -> None:
    data = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    buffer = bench.upload(data)
    assert np.array_equal(bench.device.read(buffer).view(np.uint32), data)
    part = bench.device.read(buffer, 400, 12).view(np.uint32)
    assert np.array_equal(part, data[100:103])


def test_a_range_outside_a_slice_is_refused(bench) -> None:
    buffer = bench.poisoned(4)
    with pytest.raises(DeviceError, match="range outside"):
        bench.device.read(buffer, 8, 16)
    with pytest.raises(DeviceError, match="range outside"):
        bench.device.write(buffer, np.zeros(5, np.float32))


def test_work_is_counted_exactly(bench, rng) -> None:
    device = bench.device
    width = int(rng.integers(1000, 2000))
    x = bench.upload(np.ones(width, np.float32))
    ctx = bench.context(1)
    before = device.counters.copy()
    phases = scale(ctx, x, width=width, factor=2.0, label="t")
    bound = [device.bind(as_dispatch(phase)) for phase in phases]
    device.submit(bound, 1, times=3)
    assert device.read(x, 0, 4).view(np.float32)[0] == 8.0
    device.submit(bound, 1)
    done = device.counters.since(before)
    assert vars(done) == {
        "dispatches": 4,
        "submits": 3,
        "buffer_creates": 0,
        "bind_group_creates": 1,
        "pipeline_creates": 1,
        "bytes_written": 0,
        "bytes_read": 4,
        "maps": 1,
        "uniform_creates": 0,
        "uniform_hits": 0,
    }


def test_equal_kernels_share_a_pipeline(bench) -> None:
    device = bench.device
    x = bench.upload(np.ones(64, np.float32))
    first, two = (
        as_dispatch(scale(bench.context(1), x, width=64, factor=3.5, label="t")[0])
        for _ in range(2)
    )
    device.bind(first)
    before = device.counters.copy()
    device.bind(two)
    assert device.counters.since(before).pipeline_creates == 0


def test_reading_and_writing_one_buffer_in_a_dispatch_is_an_error(bench) -> None:
    x = bench.poisoned(64)
    phases = copy(x, x, label="t")
    with pytest.raises(DeviceError, match="running a program failed"):
        bench.run(phases, 1)


def test_a_shader_that_does_not_compile_is_an_error(bench) -> None:
    x = bench.poisoned(64)
    good = as_dispatch(copy(x, bench.poisoned(64), label="t")[0]).kernel
    broken = type(good)("broken", good.source + "fn (", good.entry, good.overrides, good.bindings)
    with pytest.raises(DeviceError, match="building kernel broken"):
        bench.device.bind(Dispatch(broken, (), Work(), "t"))


def test_a_buffer_beyond_the_limit_is_refused(device) -> None:
    with pytest.raises(DeviceError, match="larger than the adapter can bind"):
        device.create_buffer("huge", device.max_binding + 4)


def test_buffers_of_an_arena_are_freed_together(device) -> None:
    with arena(device, "short") as short:
        kept = short.empty("x", 1000)
        assert short.size >= 1000
    assert short.size == 0
    with pytest.raises(DeviceError, match="has been freed"):
        device.read(kept)
    with pytest.raises(DeviceError, match="has been freed"):
        device.write(kept, np.zeros(1, np.float32))


def test_the_offsets_of_nested_slices_add_up() -> None:
    assert BufferSlice(None, 256, 1024).range(512, 256) == BufferSlice(None, 768, 256)


@pytest.mark.parametrize("groups", [1, 65_535, 65_536, 262_144, 5_000_000])
def test_workgroup_counts_cover_all_items_within_the_limit(groups) -> None:
    x, y, z = Work(groups, 8).counts(33)
    assert x * y >= groups
    assert max(x, y) <= 65_535
    assert z == 5


def test_a_dispatch_beyond_the_workgroup_limit_is_refused() -> None:
    assert Work(1, 1).counts(65_535) == (1, 1, 65_535)
    with pytest.raises(DeviceError, match="dispatch is too large"):
        Work(1, 1).counts(65_536)


def test_large_writes_wait_for_the_oldest_bytes_in_flight_and_not_for_all(bench, monkeypatch):
    device = bench.device
    monkeypatch.setattr("rdrr_device.fences.FENCE_BYTES", 1024)
    monkeypatch.setattr("rdrr_device.fences.IN_FLIGHT_BYTES", 4096)
    log: list[str] = []
    begin, collect = Readback.begin, Fetch.collect

    def beginning(self, parts, **options):
        log.append("fence")
        return begin(self, parts, **options)

    def collecting(self):
        log.append("wait")
        return collect(self)

    device.wait()
    monkeypatch.setattr(Readback, "begin", beginning)
    monkeypatch.setattr(Fetch, "collect", collecting)
    x = bench.upload(np.zeros(256, np.float32))
    log.clear()
    for number in range(1, 8):
        device.write(x, np.full(256, number, np.float32))
    assert log == ["fence"] * 4 + ["wait", "fence"] * 3 + ["wait"]
    monkeypatch.undo()
    np.testing.assert_array_equal(device.read(x).view(np.float32), np.full(256, 7.0))


def test_listing_adapters_is_quiet_without_a_desktop_session(monkeypatch, capfd):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert list_adapters()
    assert "XDG_RUNTIME_DIR" not in capfd.readouterr().err
    assert "XDG_RUNTIME_DIR" not in os.environ
