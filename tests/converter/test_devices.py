"""Devices encode the same blocks as the codecs, and flag the blocks for which they cannot."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter.devices import check_device, open_device, portions
from rdrr_converter.devices._base import BLOCK
from rdrr_converter.devices.torch_device import TorchDevice
from rdrr_converter.devices.webgpu import WebGpuDevice
from rdrr_device.adapters import list_adapters
from rdrr_format.codecs import CODECS, bf16_to_f32, f32_to_bf16
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import DeviceError, UsageError
from support.dawn_device import driver_of_dawn, why_no_dawn

COUNT = 131  # number of blocks that fills neither workgroups nor portions
NAMES = ["Q4_K", "Q5_K", "Q6_K"]

DISTRIBUTIONS = {
    "normal": lambda rng, shape: rng.standard_normal(shape) * 0.02,
    "heavy tails": lambda rng, shape: rng.standard_t(2, shape),
    "positive": lambda rng, shape: rng.random(shape) + 0.5,
    "negative": lambda rng, shape: -rng.random(shape) - 0.5,
    "one value a group": lambda rng, shape: rng.standard_normal((shape[0], 8)).repeat(32, 1),
    "few values": lambda rng, shape: rng.integers(-3, 4, shape),
    "on a grid": lambda rng, shape: rng.integers(-8, 8, shape) * 0.125,
    "zeros": lambda _, shape: np.zeros(shape),
    "negative zeros": lambda _, shape: np.full(shape, -0.0),
    "zeros between": lambda rng, shape: (
        rng.standard_normal(shape) * (rng.random((shape[0], 16)) < 0.5).repeat(16, 1)
    ),
    "other scales": lambda rng, shape: (
        rng.standard_normal(shape) * np.exp(2 * rng.standard_normal((shape[0], 8))).repeat(32, 1)
    ),
    "large": lambda rng, shape: rng.standard_normal(shape) * 1e4,
    "small": lambda rng, shape: rng.standard_normal(shape) * 1e-4,
}
OUT_OF_RANGE = {
    "next to nothing": lambda rng, shape: (
        rng.standard_normal(shape) * rng.choice([1e-20, 1e-14, 1], (shape[0], 8)).repeat(32, 1)
    ),
    "denormal": lambda rng, shape: rng.standard_normal(shape) * 1e-40,
    "spread": lambda rng, shape: np.clip(np.exp(8 * rng.standard_normal(shape)), 0, 4e5),
}


def sampled(distribution, rng):
    return ({**DISTRIBUTIONS, **OUT_OF_RANGE}[distribution](rng, (COUNT, BLOCK))).astype(np.float32)


@pytest.fixture(scope="module")
def wgpu_device():
    device = WebGpuDevice(list_adapters()[0].name, capacity=136)
    yield device
    device.close()


@pytest.fixture(params=["wgpu", "torch"])
def device(request):
    """The shaders and the torch operations, on a GPU if there is one, else in software."""
    import torch

    if request.param == "wgpu":
        return request.getfixturevalue("wgpu_device")
    return TorchDevice("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    "distributions",
    [
        pytest.param([*DISTRIBUTIONS], id="all"),
        *(pytest.param([name], id=name, marks=pytest.mark.thorough) for name in DISTRIBUTIONS),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_device_encodes_the_same_blocks_as_the_codec(device, name, distributions, rng):
    kinds = [sampled(distribution, rng) for distribution in distributions]
    weights = np.stack([kinds[block % len(kinds)][block] for block in range(COUNT)])
    ids, fallback = device.encode(name, [weights[:50], weights[50:]])
    assert ids.shape == (COUNT, DTYPES[name].block_bytes)
    assert not fallback.any()
    different = np.flatnonzero((ids != CODECS[name].quantize(weights)).any(axis=1))
    assert not different.size, f"blocks {different.tolist()} differ"


def test_dawn_encodes_the_same_blocks_as_the_codec(rng):
    why = why_no_dawn()
    if why is not None:
        pytest.skip(why)
    weights = sampled("heavy tails", rng)
    with driver_of_dawn(), open_device("dawn", "llvmpipe") as opened:
        ids, fallback = opened.wait().encode("Q4_K", [weights])
    assert not fallback.any()
    np.testing.assert_array_equal(ids, CODECS["Q4_K"].quantize(weights))


@pytest.mark.parametrize("distribution", OUT_OF_RANGE)
@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_differ_from_the_codec_are_flagged_as_fallback(device, name, distribution, rng):
    weights = sampled(distribution, rng)
    weights[7] = 0.02 * rng.standard_normal(BLOCK)
    ids, fallback = device.encode(name, [weights])
    different = (ids != CODECS[name].quantize(weights)).any(axis=1)
    assert not (different & ~fallback).any()
    assert not fallback[7]


def test_shaders_flag_every_block_with_subnormal_weights(wgpu_device, rng):
    weights = sampled("normal", rng)
    subnormal = rng.permutation(COUNT)[:20]
    weights[subnormal, rng.integers(0, BLOCK, 20)] = 1e-40
    _, fallback = wgpu_device.encode("Q4_K", [weights])
    assert sorted(np.flatnonzero(fallback)) == sorted(subnormal)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_beyond_the_range_of_the_type_are_flagged_as_fallback(device, name, rng):
    weights = sampled("normal", rng)
    weights[3] *= 1e10
    _, fallback = device.encode(name, [weights])
    assert np.flatnonzero(fallback).tolist() == [3]


@pytest.mark.parametrize("name", NAMES)
def test_weights_may_be_given_in_bfloat16(device, name, rng):
    bits = f32_to_bf16(sampled("normal", rng))
    ids, fallback = device.encode(name, [bits[:30], bits[30:]])
    assert not fallback.any()
    assert np.array_equal(ids, CODECS[name].quantize(bf16_to_f32(bits)))
    other, _ = device.encode(name, [bits[::-1]])
    assert not np.array_equal(ids, other)  # control: the blocks depend on the weights


def test_an_error_in_torch_becomes_a_device_error_of_one_line(rng):
    device = TorchDevice("cpu", capacity=10)
    too_many = rng.standard_normal((11, BLOCK), np.float32)
    with pytest.raises(DeviceError, match="encoding Q4_K on cpu failed") as caught:
        device.encode("Q4_K", [too_many])
    assert "\n" not in caught.value.line()
    device.encode("Q4_K", [too_many[:10]])


def test_more_blocks_than_the_capacity_are_a_device_error_of_one_line(wgpu_device, rng):
    most = wgpu_device.capacity
    too_many = rng.standard_normal((most + 1, BLOCK), np.float32)
    with pytest.raises(DeviceError, match=f"at most {most * BLOCK * 4} bytes") as caught:
        wgpu_device.encode("Q4_K", [too_many])
    assert "\n" not in caught.value.line()
    ids, _ = wgpu_device.encode("Q4_K", [too_many[:most]])
    assert np.array_equal(ids, CODECS["Q4_K"].quantize(too_many[:most]))


def test_portions_contain_every_block_once_and_fit_the_capacity(rng):
    sizes = rng.integers(0, 30, 40)
    parts = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    groups = list(portions(parts, 17))
    filled = [sum(map(len, group)) for group in groups]
    assert max(filled) == 17
    assert set(filled[:-1]) <= {17}
    assert np.array_equal(
        np.concatenate([part for group in groups for part in group]), np.arange(sum(sizes))
    )


def test_a_software_adapter_is_used_only_if_it_is_named(monkeypatch):
    import wgpu

    every = wgpu.gpu.enumerate_adapters_sync()
    software = next(adapter for adapter in list_adapters() if adapter.software)
    only = [one for one in every if one.info["adapter_type"] == "CPU"]
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: only)
    with open_device("wgpu") as opened:
        for ask in (opened.wait, opened.check):
            with pytest.raises(DeviceError, match=r"finds no GPU.*`device` cpu"):
                ask()
    with open_device("wgpu", software.name[:5].upper()) as opened:
        assert opened.wait().name == software.name
        opened.check()
    with open_device("wgpu", "abacus") as opened, pytest.raises(UsageError, match="no such adapt"):
        opened.wait()


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with open_device("cuda") as opened, pytest.raises(DeviceError, match="no CUDA device"):
        opened.wait()


def test_the_cpu_needs_no_device():
    with open_device("cpu") as opened:
        opened.check()
        assert opened.wait() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tpu", None, "threads"), "cpu, wgpu, dawn, cuda"),
        (("cuda", "NVIDIA", "threads"), "`adapter` is only for `device` wgpu and dawn"),
        (("wgpu", None, "ray"), "`engine` threads"),
    ],
)
def test_invalid_device_options_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        check_device(*arguments)


@pytest.mark.parametrize("arguments", [("cpu", None, "ray"), ("wgpu", "llvm", "threads")])
def test_valid_device_options_are_accepted(arguments):
    check_device(*arguments)
