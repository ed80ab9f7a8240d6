"""Blocks encoded by compute shaders (`shaders/`), on any adapter that wgpu finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.device import open_adapter
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.shaders import ShaderFolder, storage_bindings, with_binding_numbers
from rdrr_device.uploads import UploadBuffer
from rdrr_format.dtypes import DTYPES

from rdrr_converter.devices._base import BLOCK, Bytes, Flags, Weights
from rdrr_converter.devices.adapters import choose
from rdrr_converter.devices.candidates import NUMERATORS

CAPACITY = 1 << 15
"""Blocks at a time: 8 million weights, 32 MiB of float32."""

_LANES = 64  # threads of a workgroup
_NUMERATORS = 32  # that the task has room for
_LARGEST_BLOCK = 210  # bytes
_FOLDER = ShaderFolder("rdrr_converter.devices")


@dataclass(frozen=True)
class Shader:
    """The program of a storage type.

    Attributes:
        name: Its file.
        group: Weights that a thread encodes.
    """

    name: str
    group: int

    @property
    def blocks(self) -> int:
        """Blocks that a workgroup encodes."""
        return _LANES * self.group // BLOCK

    @cached_property
    def kernel(self) -> Kernel:
        """The whole program, which binds weights, blocks, flags and the task."""
        text = _FOLDER.render(f"shaders/{self.name}")
        return Kernel(self.name, with_binding_numbers(text), "main", (), storage_bindings(text))


SHADERS: Mapping[str, Shader] = MappingProxyType(
    {
        "Q4_K": Shader("q4_k.wgsl", 32),
        "Q5_K": Shader("q5_k.wgsl", 32),
        "Q6_K": Shader("q6_k.wgsl", 16),
    }
)
"""By storage type. The other types are encoded faster than their weights can be sent."""


class WebGpuDevice:
    """A `BlockDevice`: buffers for `capacity` blocks, and a pipeline for each type when it comes.

    Args:
        adapter: Part of an adapter's name; None for the best that is hardware.
        capacity: Blocks, a multiple of eight.
    """

    types = frozenset(SHADERS)

    def __init__(self, adapter: str | None = None, capacity: int = CAPACITY) -> None:
        self._device = open_adapter(choose(adapter))
        self.name = self._device.info.name
        self.capacity = capacity
        weights, buffers = capacity * BLOCK * 4, Arena(self._device, "convert")
        self._sent = UploadBuffer(self._device, "convert.sent", weights)
        self._weights = buffers.empty("weights", weights)
        self._encoded = buffers.empty("encoded", capacity * _LARGEST_BLOCK)
        self._odd = buffers.empty("odd", capacity * 4)  # as many words of flags at most
        self._task = buffers.empty("task", 16 + 4 * _NUMERATORS)
        self._bound: dict[str, BoundDispatch] = {}

    def encode(self, dtype: str, parts: Sequence[Weights]) -> tuple[Bytes, Flags]:
        """As `BlockDevice.encode`."""
        self.upload(dtype, parts)
        return self.run(dtype, sum(map(len, parts)))

    def upload(self, dtype: str, parts: Sequence[Weights]) -> None:
        """Put blocks where the shader of a type reads them."""
        self._sent.write(self._weights, parts)
        self._device.write(self._task, _task(dtype, in_halves=parts[0].dtype == np.uint16))

    def run(self, dtype: str, count: int, times: int = 1) -> tuple[Bytes, Flags]:
        """Encode the blocks that were uploaded, several times where that is to be timed."""
        shader, block_bytes = SHADERS[dtype], DTYPES[dtype].block_bytes
        workgroups = -(-count // shader.blocks)
        self._device.submit([replace(self._bind(dtype), work=Work(workgroups))], 1, times)
        size = workgroups * shader.blocks * block_bytes
        fetch = self._device.fetch(self._encoded.range(0, size), self._odd.range(0, workgroups * 4))
        raw, flags = fetch.collect()
        blocks = raw[: count * block_bytes].reshape(count, block_bytes)
        words = flags.reshape(workgroups, 4)
        odd = np.unpackbits(words[:, :1], axis=1, bitorder="little")[:, : shader.blocks]
        return blocks, odd.reshape(-1)[:count].astype(np.bool_)

    def _bind(self, dtype: str) -> BoundDispatch:
        """The pipeline of a type and its bindings, made once."""
        if dtype not in self._bound:
            buffers = (self._weights, self._encoded, self._odd, self._task)
            self._bound[dtype] = self._device.bind(
                Dispatch(SHADERS[dtype].kernel, buffers, Work(), f"encoding {dtype}")
            )
        return self._bound[dtype]

    def close(self) -> None:
        """Free the device; it must not be used afterwards."""
        self._bound.clear()
        self._device.close()


def _task(dtype: str, *, in_halves: bool) -> Bytes:
    """What the shader is told of a run."""
    numerators = NUMERATORS[dtype]
    head = np.array([0, in_halves, len(numerators), 0], np.uint32)
    rest = np.zeros(_NUMERATORS, np.float32)
    rest[: len(numerators)] = numerators
    return np.concatenate([head.view(np.uint8), rest.view(np.uint8)])
