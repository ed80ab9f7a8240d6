"""Encoding of blocks with compute shaders (`shaders/`), on any adapter that WebGPU finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from rdrr_device.arena import DeviceArena
from rdrr_device.device import open_adapter
from rdrr_device.implementations.interface import WebGpuName
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.shaders import ShaderFolder, storage_bindings, with_binding_numbers
from rdrr_device.uploads import UploadBuffer
from rdrr_format.dtypes import DTYPES

from rdrr_converter.devices._base import BLOCK, Bytes, Flags, Weights
from rdrr_converter.devices.adapters import choose
from rdrr_converter.devices.candidates import NUMERATORS

CAPACITY = 1 << 15
"""Maximum number of blocks in one call: 8 million weights, 32 MiB in float32."""

_LANES = 64  # threads of a workgroup
_NUMERATORS = 32  # maximum number that the shader's parameters hold
_LARGEST_BLOCK = 210  # bytes
_FOLDER = ShaderFolder("rdrr_converter.devices")


@dataclass(frozen=True)
class Shader:
    """The compute shader of a storage type.

    Attributes:
        name: Name of its file.
        group: Number of weights that a thread encodes.
    """

    name: str
    group: int

    @property
    def blocks(self) -> int:
        """Number of blocks that a workgroup encodes."""
        return _LANES * self.group // BLOCK

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel; its bindings are weights, encoded blocks, fallback flags and parameters."""
        text = _FOLDER.render(f"shaders/{self.name}")
        return Kernel(self.name, with_binding_numbers(text), "main", (), storage_bindings(text))


SHADERS: Mapping[str, Shader] = MappingProxyType(
    {
        "Q4_K": Shader("q4_k.wgsl", 32),
        "Q5_K": Shader("q5_k.wgsl", 32),
        "Q6_K": Shader("q6_k.wgsl", 16),
    }
)
"""Shaders by storage type; the CPU encodes the other types faster than they can be uploaded."""


class WebGpuDevice:
    """A `BlockDevice` with buffers for `capacity` blocks and one pipeline per type, made on demand.

    Args:
        adapter: Part of an adapter's name; None for the best hardware adapter.
        capacity: Maximum number of blocks in one call, a multiple of eight.
        webgpu: Name of the implementation of WebGPU.
    """

    types = frozenset(SHADERS)

    def __init__(
        self, adapter: str | None = None, capacity: int = CAPACITY, webgpu: WebGpuName = "wgpu"
    ) -> None:
        self._device = open_adapter(choose(adapter, webgpu))
        self.name = self._device.info.name
        self.capacity = capacity
        weights, buffers = capacity * BLOCK * 4, DeviceArena(self._device, "convert")
        self._upload = UploadBuffer(self._device, "convert.upload", weights)
        self._weights = buffers.empty("weights", weights)
        self._encoded = buffers.empty("encoded", capacity * _LARGEST_BLOCK)
        self._fallback = buffers.empty("fallback", capacity * 4)  # one word of flags per workgroup
        self._params = buffers.empty("params", 16 + 4 * _NUMERATORS)
        self._bound: dict[str, BoundDispatch] = {}

    def encode(self, dtype: str, parts: Sequence[Weights]) -> tuple[Bytes, Flags]:
        """See `BlockDevice.encode`."""
        self.upload(dtype, parts)
        return self.run(dtype, sum(map(len, parts)))

    def upload(self, dtype: str, parts: Sequence[Weights]) -> None:
        """Upload blocks and parameters for the shader of a type."""
        self._upload.write(self._weights, parts)
        self._device.write(self._params, _params(dtype, is_bf16=parts[0].dtype == np.uint16))

    def run(self, dtype: str, count: int, times: int = 1) -> tuple[Bytes, Flags]:
        """Encode the first `count` uploaded blocks, `times` times over for benchmarks."""
        shader, block_bytes = SHADERS[dtype], DTYPES[dtype].block_bytes
        workgroups = -(-count // shader.blocks)
        self._device.submit([replace(self._bind(dtype), work=Work(workgroups))], 1, times)
        size = workgroups * shader.blocks * block_bytes
        fetch = self._device.fetch(
            self._encoded.range(0, size), self._fallback.range(0, workgroups * 4)
        )
        raw, flags = fetch.collect()
        blocks = raw[: count * block_bytes].reshape(count, block_bytes)
        words = flags.reshape(workgroups, 4)
        fallback = np.unpackbits(words[:, :1], axis=1, bitorder="little")[:, : shader.blocks]
        return blocks, fallback.reshape(-1)[:count].astype(np.bool_)

    def _bind(self, dtype: str) -> BoundDispatch:
        """Return the pipeline of a type with its bindings, which are made once."""
        if dtype not in self._bound:
            buffers = (self._weights, self._encoded, self._fallback, self._params)
            self._bound[dtype] = self._device.bind(
                Dispatch(SHADERS[dtype].kernel, buffers, Work(), f"encoding {dtype}")
            )
        return self._bound[dtype]

    def close(self) -> None:
        """Release the device; it must not be used afterwards."""
        self._bound.clear()
        self._device.close()


def _params(dtype: str, *, is_bf16: bool) -> Bytes:
    """Return the bytes of the struct `Params` of `shaders/common.wgsl`."""
    numerators = NUMERATORS[dtype]
    head = np.array([0, is_bf16, len(numerators), 0], np.uint32)
    rest = np.zeros(_NUMERATORS, np.float32)
    rest[: len(numerators)] = numerators
    return np.concatenate([head.view(np.uint8), rest.view(np.uint8)])
