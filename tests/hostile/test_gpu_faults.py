"""GPU failures give a clear error, leak nothing, and the model can be loaded again."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import rdrr as front
import wgpu
from rdrr_device import device as device_module
from rdrr_device.arena import arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device, open_device
from rdrr_format.errors import DeviceError, UsageError
from rdrr_manifests import loading
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.exec.footprint import footprint
from rdrr_runtime.gpu import GpuBackend
from support.commands import error_line, rdrr

PROMPT = "And it came to pass"
CONTEXT, TOKENS = 64, 6


@pytest.fixture
def opened(monkeypatch) -> list[Device]:
    """Collect the devices that are opened during the test."""
    devices: list[Device] = []
    real = device_module.open_adapter

    def remembering(*arguments, **options):
        devices.append(real(*arguments, **options))
        return devices[-1]

    monkeypatch.setattr(device_module, "open_adapter", remembering)
    return devices


@pytest.fixture(scope="module")
def package(shallow_package) -> Path:
    return shallow_package


@pytest.fixture(scope="module")
def expected(package) -> str:
    with load(package) as model:
        return model.generate(PROMPT, max_tokens=TOKENS).read()


def load(package, **options) -> front.Model:
    return front.load(package, **({"backend": "wgpu", "context": CONTEXT} | options))


@pytest.mark.thorough
@pytest.mark.parametrize("is_warm", [False, True], ids=["first generation", "later generation"])
def test_a_device_lost_during_generation_ends_it_and_the_model_can_be_loaded_again(
    package, opened, expected, is_warm
):
    model = load(package)
    if is_warm:  # all buffers are bound already, so the loss shows when a pass is submitted
        assert model.generate(PROMPT, max_tokens=TOKENS).read() == expected
    generation = model.generate(PROMPT, max_tokens=TOKENS, interval=1)
    before = "".join(islice(generation, 2))
    opened[0].wgpu.destroy()
    with pytest.raises(DeviceError, match=r"device was lost while .*load it again"):
        generation.read()
    assert expected.startswith(before)
    with pytest.raises(DeviceError, match="device was lost"):
        model.generate(PROMPT, max_tokens=2).read()
    model.close()
    model.close()
    with load(package) as again:
        assert again.generate(PROMPT, max_tokens=TOKENS).read() == expected


CALLS = {
    "generate": lambda model: model.generate(PROMPT, max_tokens=4).read(),
    "sample": lambda model: model.generate(PROMPT, max_tokens=4, temperature=1.0, seed=1).read(),
    "generate_batch": lambda model: model.generate_batch([PROMPT, "Now"], max_tokens=4),
    "logits": lambda model: model.logits(model.encode(PROMPT)),
    "session": lambda model: model.session(PROMPT).generate(max_tokens=4).read(),
}


@pytest.mark.thorough
def test_every_call_says_that_the_device_was_lost(package, opened):
    with load(package) as model:
        for call in CALLS.values():
            call(model)  # the control
        opened[0].wgpu.destroy()
        for call in CALLS.values():
            with pytest.raises(DeviceError, match="device was lost"):
                call(model)


def test_a_device_lost_while_loading_is_reported_as_lost(package, monkeypatch):
    real = GpuBackend.__init__

    def losing(self, *arguments, device, **options):
        device.wgpu.destroy()
        real(self, *arguments, device=device, **options)

    monkeypatch.setattr(GpuBackend, "__init__", losing)
    with pytest.raises(DeviceError, match="device was lost while creating buffer"):
        load(package)
    monkeypatch.undo()
    load(package).close()


class Exhausted:
    """A GPU that runs out of memory after `left` more buffers."""

    def __init__(self, gpu, left: int) -> None:
        self._gpu, self.left = gpu, left

    def __getattr__(self, name: str):
        return getattr(self._gpu, name)

    def create_buffer(self, **options):
        if self.left <= 0:
            raise wgpu.GPUOutOfMemoryError("Not enough memory left.")
        self.left -= 1
        return self._gpu.create_buffer(**options)


@pytest.mark.parametrize("left", [0, pytest.param(1, marks=pytest.mark.thorough), 5])
def test_out_of_memory_while_loading_frees_what_was_allocated(package, left):
    source = front.open_package(package)
    device = open_device()
    whole, device.wgpu = device.wgpu, Exhausted(device.wgpu, left)
    with pytest.raises(DeviceError, match=r"the GPU is out of memory.*smaller context.*cpu"):
        GpuBackend(source, context=CONTEXT, device=device)
    assert device.memory.live == 0
    device.wgpu = whole
    backend = GpuBackend(source, context=CONTEXT, device=device)
    assert device.memory.live > 1 << 20
    backend.close()
    device.close()


def test_a_load_that_runs_out_of_memory_does_not_wait_for_hashes(package, monkeypatch):
    stopped = []
    real = loading.hash_file

    def slow(path, algorithm, is_stopped):
        while not is_stopped():
            pass
        stopped.append(path)
        return real(path, algorithm, is_stopped)

    def exhausted(*_):
        raise DeviceError("the GPU is out of memory")

    monkeypatch.setattr(loading, "hash_file", slow)
    monkeypatch.setattr(Device, "create_buffer", exhausted)
    with pytest.raises(DeviceError, match="out of memory"):
        load(package, verify="full")
    assert len(stopped) == 1
    monkeypatch.undo()
    load(package, verify="full").close()


def test_out_of_memory_during_generation_leaves_the_model_usable(package, opened):
    with load(package) as model:
        expected = model.generate(PROMPT, max_tokens=TOKENS).read()
        [device] = opened
        live = device.memory.live
        whole, device.wgpu = device.wgpu, Exhausted(device.wgpu, 2)
        with pytest.raises(DeviceError, match="the GPU is out of memory"):
            model.generate_batch([PROMPT, "Now", "Then"], max_tokens=4)
        device.wgpu = whole
        assert device.memory.live == live
        assert model.generate(PROMPT, max_tokens=TOKENS).read() == expected


@pytest.mark.parametrize(
    "kv_dtype",
    ["f16", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("f32", "q8_0"))],
)
def test_a_model_beyond_the_limit_is_refused_before_a_weight_is_read(
    package, opened, monkeypatch, kv_dtype
):
    source = front.open_package(package)
    with load(package, kv_dtype=kv_dtype) as model:
        need = footprint(
            source, opened[0].capabilities, Policy(), context=CONTEXT, kv_dtype=kv_dtype
        )
        model.generate(PROMPT, max_tokens=4).read()
        assert need.total < opened[0].memory.peak <= need.peak
    with load(package, kv_dtype=kv_dtype, max_vram=need.peak):
        pass
    monkeypatch.setattr(type(source), "read", None)
    monkeypatch.setattr(type(source), "read_rows", None)
    monkeypatch.setattr(type(source), "fetch", None)
    with pytest.raises(DeviceError, match="more GPU memory than `max_vram` allows") as caught:
        load(package, kv_dtype=kv_dtype, max_vram=need.peak - 1)
    assert caught.value.need == need.peak
    line = str(caught.value)
    for words in ("weights +", "key-value cache +", "activations and tables +", "staging"):
        assert words in line
    assert f"`context` below {CONTEXT}" in line
    assert ("q8_0" in line) == (kv_dtype != "q8_0")
    assert opened[-1].memory.peak == 0


@pytest.mark.thorough  # as running out of memory during generation, which a test above does
def test_a_batch_beyond_the_limit_is_refused_and_leaves_the_model_usable(package, opened, expected):
    with load(package, max_vram=2**40) as model:
        memory = opened[0].memory
        assert memory.limit == 2**40
        assert model.generate(PROMPT, max_tokens=TOKENS).read() == expected
        memory.limit = memory.live
        with pytest.raises(DeviceError, match="more GPU memory than `max_vram` allows"):
            model.generate_batch([PROMPT] * 3, max_tokens=2)
        assert memory.live <= memory.limit
        assert model.generate(PROMPT, max_tokens=TOKENS).read() == expected
        memory.limit = None
        assert len(model.generate_batch([PROMPT] * 3, max_tokens=2)) == 3


def test_a_smaller_context_or_cache_type_fits_the_limit(package):
    source = front.open_package(package)
    device = open_device()
    need = footprint(source, device.capabilities, Policy(), context=2048, kv_dtype="f16").peak
    device.close()
    with pytest.raises(DeviceError, match=r"max_vram.*q8_0"):
        load(package, context=2048, max_vram=need - 1)
    with pytest.raises(DeviceError, match="max_vram") as caught:
        load(package, context=2048, max_vram=1, kv_dtype="q8_0")
    assert "q8_0" not in str(caught.value)
    for options in ({"context": 1024}, {"context": 2048, "kv_dtype": "q8_0"}):
        load(package, max_vram=need - 1, **options).close()


def generate(package, *words):
    words = ("--prompt", PROMPT, "--max-tokens", 2, "--context", 64, *words)
    return rdrr("generate", package, *words)


@pytest.mark.thorough
def test_the_command_runs_within_a_size_with_a_unit(package):
    assert generate(package, "--backend", "wgpu", "--max-vram", "1GiB").code == 0


def test_the_command_accepts_sizes_with_units(package):
    done = generate(package, "--backend", "wgpu", "--max-vram", "1MiB")
    assert "at most 1.0 MiB" in error_line(done, 1)
    assert generate(package, "--backend", "wgpu", "--max-vram", "much").code == 2
    done = generate(package, "--backend", "cpu", "--max-vram", "1GiB")
    assert "only for GPUs" in error_line(done, 2)
    with pytest.raises(UsageError):
        load(package, max_vram=0)


def test_a_device_that_is_not_lost_says_what_failed():
    device = open_device()
    with arena(device) as buffers:
        buffer = buffers.empty("a", 64)
        with pytest.raises(DeviceError, match="copying failed") as caught:
            copy_onto_itself(device, buffer)
    assert "lost" not in str(caught.value)
    device.close()


def copy_onto_itself(device: Device, buffer: BufferSlice) -> None:
    with device.implementation.errors("copying"):
        encoder = device.wgpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(buffer.buffer.gpu, 0, buffer.buffer.gpu, 0, 64)
        device.wgpu.queue.submit([encoder.finish()])
