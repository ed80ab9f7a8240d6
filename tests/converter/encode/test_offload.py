"""Conversions with a device give the same bytes, lose nothing and count all blocks."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter import devices
from rdrr_converter.convert import convert
from rdrr_converter.devices.torch_device import TorchDevice
from rdrr_converter.encode.chunks import chunks
from rdrr_converter.encode.offload import encode_on_device
from rdrr_converter.encode.quantize import encode_chunk
from rdrr_converter.engines import open_engine
from rdrr_device.adapters import list_adapters
from rdrr_format.codecs import CODECS, bf16_to_f32
from rdrr_format.errors import DeviceError
from support.safetensor_files import llama_tensors, write_llama

SHARD = 2**16


SIZES = {"num_hidden_layers": 1, "head_dim": 32, "intermediate_size": 256}


def written(folder, rng):
    return write_llama(folder, llama_tensors(rng, **SIZES), **SIZES)


@pytest.fixture
def folder(tmp_path, rng):
    return written(tmp_path / "source", rng)


@pytest.fixture
def adapter():
    return list_adapters()[0].name


@pytest.fixture
def on_torch(monkeypatch):
    """Make `--device cuda` run the torch operations on the CPU, a few blocks at a time."""
    table = {**devices._DEVICES, "cuda": lambda _: TorchDevice("cpu", capacity=2000)}
    monkeypatch.setattr(devices, "_DEVICES", table)


class PartialDevice:
    """A device that encodes every third block, and returns garbage with a flag for the others."""

    name = "partial"
    types = frozenset({"Q4_K"})
    capacity = 100

    def __init__(self):
        self.most = 0

    def encode(self, dtype, parts):
        weights = np.concatenate(parts)
        if weights.dtype == np.uint16:
            weights = bf16_to_f32(weights)
        self.most = max(self.most, len(weights))
        blocks, fallback = CODECS[dtype].quantize(weights), np.arange(len(weights)) % 3 != 0
        blocks[fallback] = 255
        return blocks, fallback

    def close(self):
        pass


class FailingDevice(PartialDevice):
    """A device that always fails as if it were lost."""

    def encode(self, dtype, parts):
        raise DeviceError("the device is lost", where=dtype, found=len(parts))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def on_device(device, plan, workers=3):
    """Encode every chunk of a plan with the device, and return them in order."""
    work = [(tensor, chunk) for tensor in plan.tensors for chunk in chunks(tensor)]
    with open_engine("threads", workers) as engine:
        done = list(encode_on_device(device, iter(work), engine, encode_chunk))
    assert [result.work for result in done] == work
    return done


def test_a_package_encoded_on_webgpu_has_the_same_bytes_as_on_the_cpu(
    folder, adapter, tmp_path, rng
):
    plain = convert(folder, tmp_path / "cpu", shard_size=SHARD)
    package = convert(folder, tmp_path / "wgpu", shard_size=SHARD, device="wgpu", adapter=adapter)
    assert contents(tmp_path / "cpu") == contents(tmp_path / "wgpu")
    assert plain.encoded_blocks["cpu"] == package.encoded_blocks["wgpu"] > 0
    assert package.encoded_blocks["cpu"] == 0
    other = written(tmp_path / "other", rng)
    convert(other, tmp_path / "others", shard_size=SHARD, device="wgpu", adapter=adapter)
    assert contents(tmp_path / "cpu") != contents(tmp_path / "others")


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(
    "options",
    [
        {"q4k_layout": "column", "fuse_gate_up": True},
        {"q4k_layout": "flat"},
        {"quantize": "q5_k_m", "workers": 1},
        {"quantize": "q6_k", "shard_size": SHARD},
        {"quality": "best"},
        {"quantize": "q8_0"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_every_layout_has_the_same_bytes_with_torch(folder, tmp_path, options):
    convert(folder, tmp_path / "cpu", **options)
    package = convert(folder, tmp_path / "torch", device="cuda", **options)
    assert contents(tmp_path / "cpu") == contents(tmp_path / "torch")
    k_quants = options.get("quantize") != "q8_0" and "quality" not in options
    assert (package.encoded_blocks["cuda"] > 0) == k_quants
    assert (package.encoded_blocks["cpu"] == 0) == k_quants


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_rows_with_a_partial_block_are_padded(tmp_path, rng, dtype):
    sizes = {"num_hidden_layers": 1, "hidden_size": 192, "intermediate_size": 320}
    tensors = llama_tensors(rng, dtype=dtype, **sizes)
    folder = write_llama(tmp_path / "source", tensors, **sizes)
    convert(folder, tmp_path / "cpu")
    package = convert(folder, tmp_path / "torch", device="cuda")
    assert contents(tmp_path / "cpu") == contents(tmp_path / "torch")
    assert package.encoded_blocks["cpu"] == 0


def test_fallback_blocks_are_encoded_by_the_cpu(folder, tmp_path):
    plan = convert(folder, tmp_path / "out", dry_run=True).plan
    device = PartialDevice()
    done = on_device(device, plan)
    assert device.most == device.capacity
    for result in done:
        assert np.array_equal(result.data, encode_chunk(result.work))
    by_device = sum(result.by_device for result in done)
    blocks = sum(len(result.data) // 144 for result in done if result.work[0].dtype.name == "Q4_K")
    assert blocks / 3 <= by_device < blocks / 2


@pytest.mark.usefixtures("on_torch")
def test_a_conversion_can_be_resumed_with_another_device(folder, tmp_path):
    def kill(event):
        if event.stage == "write" and event.done > event.total / 2:
            raise KeyboardInterrupt  # leaves what a kill leaves

    with pytest.raises(KeyboardInterrupt):
        convert(folder, tmp_path / "out", shard_size=SHARD, resume=True, progress=kill)
    result = convert(folder, tmp_path / "out", shard_size=SHARD, resume=True, device="cuda")
    assert result.reused_shards > 0
    convert(folder, tmp_path / "whole", shard_size=SHARD)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_failing_device_leaves_no_files(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_DEVICES", {"wgpu": lambda _: FailingDevice()})
    with pytest.raises(DeviceError, match="the device is lost"):
        convert(folder, tmp_path / "out", device="wgpu")
    assert not (tmp_path / "out").exists()


def test_a_missing_device_ends_the_scan(folder, tmp_path, monkeypatch):
    def missing(_):
        raise DeviceError("no device")

    stages = set()
    monkeypatch.setattr(devices, "_DEVICES", {"cuda": missing})
    with pytest.raises(DeviceError, match="no device"):
        convert(
            folder, tmp_path / "out", device="cuda", progress=lambda step: stages.add(step.stage)
        )
    assert stages <= {"scan"}
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_dry_run_needs_no_device(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_DEVICES", {"wgpu": lambda _: 1 / 0})
    assert convert(folder, tmp_path / "out", device="wgpu", dry_run=True).encoded_blocks == {}
    with pytest.raises(ZeroDivisionError):
        convert(folder, tmp_path / "out", device="wgpu")
