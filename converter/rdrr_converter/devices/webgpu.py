"""Blocks encoded by compute shaders (`shaders/`), on any adapter that wgpu finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np
from rdrr_format.dtypes import DTYPES

from rdrr_converter.devices._base import BLOCK, Bytes, Flags, Weights, device_errors
from rdrr_converter.devices.adapters import open_adapter
from rdrr_converter.devices.candidates import NUMERATORS

CAPACITY = 1 << 15
"""Blocks at a time: 8 million weights, 32 MiB of float32."""

_LANES = 64  # threads of a workgroup
_NUMERATORS = 32  # that the uniform has room for
_LARGEST_BLOCK = 210  # bytes


@dataclass(frozen=True)
class Shader:
    """The program of a storage type.

    Attributes:
        parts: Files of its text.
        group: Weights that a thread encodes.
    """

    parts: tuple[str, ...]
    group: int

    @property
    def blocks(self) -> int:
        """Blocks that a workgroup encodes."""
        return _LANES * self.group // BLOCK

    def text(self) -> str:
        """The whole program."""
        folder = files("rdrr_converter.devices").joinpath("shaders")
        return "\n".join(folder.joinpath(part).read_text(encoding="utf-8") for part in self.parts)


SHADERS: Mapping[str, Shader] = MappingProxyType(
    {
        "Q4_K": Shader(("common.wgsl", "affine.wgsl", "q4_k.wgsl"), 32),
        "Q5_K": Shader(("common.wgsl", "affine.wgsl", "q5_k.wgsl"), 32),
        "Q6_K": Shader(("common.wgsl", "q6_k.wgsl"), 16),
    }
)
"""By storage type. The other types are encoded faster than their weights can be sent."""


def _device_errors(what: str) -> AbstractContextManager[None]:
    import wgpu

    return device_errors(what, wgpu.GPUError, RuntimeError)


class WebGpuDevice:
    """A `BlockDevice`: buffers for `capacity` blocks, and a pipeline for each type when it comes.

    Args:
        adapter: Part of an adapter's name; None for the best that is hardware.
        capacity: Blocks, a multiple of eight.
    """

    types = frozenset(SHADERS)

    def __init__(self, adapter: str | None = None, capacity: int = CAPACITY) -> None:
        self.name, self._gpu = open_adapter(adapter)
        self.capacity = capacity
        self._pipelines: dict[str, tuple[Any, Any]] = {}
        with _device_errors(f"opening {self.name}"):
            self._make_buffers()

    def _make_buffers(self) -> None:
        from wgpu import BufferUsage as Usage

        gpu, flags = self._gpu, self.capacity  # as many words of flags at most
        encoded = self.capacity * _LARGEST_BLOCK
        weights = self.capacity * BLOCK * 4
        self._sent = gpu.create_buffer(size=weights, usage=Usage.MAP_WRITE | Usage.COPY_SRC)
        self._weights = gpu.create_buffer(size=weights, usage=Usage.STORAGE | Usage.COPY_DST)
        self._encoded = gpu.create_buffer(size=encoded, usage=Usage.STORAGE | Usage.COPY_SRC)
        self._odd = gpu.create_buffer(size=flags * 4, usage=Usage.STORAGE | Usage.COPY_SRC)
        self._task = gpu.create_buffer(
            size=16 + 4 * _NUMERATORS, usage=Usage.UNIFORM | Usage.COPY_DST
        )
        self._received = gpu.create_buffer(
            size=encoded + flags * 4, usage=Usage.MAP_READ | Usage.COPY_DST
        )

    def encode(self, dtype: str, parts: Sequence[Weights]) -> tuple[Bytes, Flags]:
        """As `BlockDevice.encode`."""
        with _device_errors(f"encoding {dtype} on {self.name}"):
            self.upload(dtype, parts)
            return self.run(dtype, sum(map(len, parts)))

    def upload(self, dtype: str, parts: Sequence[Weights]) -> None:
        """Put blocks where the shader of a type reads them."""
        # Into memory that the GPU sees: `write_buffer` would make some of it each time, which
        # takes longer than filling it.
        size = sum(part.nbytes for part in parts)
        self._sent.map_async("WRITE", 0, size).sync_wait()
        try:
            place = 0
            for part in parts:
                self._sent.write_mapped(np.ascontiguousarray(part), place)
                place += part.nbytes
        finally:
            self._sent.unmap()
        commands = self._gpu.create_command_encoder()
        commands.copy_buffer_to_buffer(self._sent, 0, self._weights, 0, size)
        queue = self._gpu.queue
        queue.write_buffer(self._task, 0, _task(dtype, in_halves=parts[0].dtype == np.uint16))
        queue.submit([commands.finish()])

    def run(self, dtype: str, count: int, times: int = 1) -> tuple[Bytes, Flags]:
        """Encode the blocks that were uploaded, several times where that is to be timed."""
        pipeline, bindings = self._pipeline(dtype)
        shader, block_bytes = SHADERS[dtype], DTYPES[dtype].block_bytes
        workgroups = -(-count // shader.blocks)
        size = workgroups * shader.blocks * block_bytes
        commands = self._gpu.create_command_encoder()
        compute = commands.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, bindings)
        for _ in range(times):
            compute.dispatch_workgroups(workgroups)
        compute.end()
        commands.copy_buffer_to_buffer(self._encoded, 0, self._received, 0, size)
        commands.copy_buffer_to_buffer(self._odd, 0, self._received, size, workgroups * 4)
        self._gpu.queue.submit([commands.finish()])
        raw = self._download(size + workgroups * 4)
        blocks = raw[: count * block_bytes].reshape(count, block_bytes)
        words = raw[size:].reshape(workgroups, 4)
        odd = np.unpackbits(words[:, :1], axis=1, bitorder="little")[:, : shader.blocks]
        return blocks, odd.reshape(-1)[:count].astype(np.bool_)

    def _download(self, size: int) -> Bytes:
        whole = -(-size // 8) * 8  # what can be mapped
        # The copy was submitted before, so the wrapper's own submission is not needed.
        self._received.map_async("READ_NOSYNC", 0, whole).sync_wait()
        try:
            mapped = self._received.read_mapped(0, whole, copy=False)
            return np.frombuffer(mapped, np.uint8)[:size].copy()
        finally:
            self._received.unmap()

    def _pipeline(self, dtype: str) -> tuple[Any, Any]:
        """The pipeline of a type and its bindings, made once."""
        made = self._pipelines.get(dtype)
        if made is None:
            made = self._pipelines[dtype] = self._build(dtype)
        return made

    def _build(self, dtype: str) -> tuple[Any, Any]:
        gpu = self._gpu
        module = gpu.create_shader_module(label=dtype, code=SHADERS[dtype].text())
        pipeline = gpu.create_compute_pipeline(
            label=dtype, layout="auto", compute={"module": module, "entry_point": "main"}
        )
        buffers = (self._weights, self._encoded, self._odd, self._task)
        entries = [
            {"binding": at, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for at, buffer in enumerate(buffers)
        ]
        layout = pipeline.get_bind_group_layout(0)
        return pipeline, gpu.create_bind_group(label=dtype, layout=layout, entries=entries)

    def close(self) -> None:
        """Free the device; it must not be used afterwards."""
        self._pipelines.clear()
        self._gpu.destroy()


def _task(dtype: str, *, in_halves: bool) -> Bytes:
    """The uniform of a run."""
    numerators = NUMERATORS[dtype]
    head = np.array([0, in_halves, len(numerators), 0], np.uint32)
    rest = np.zeros(_NUMERATORS, np.float32)
    rest[: len(numerators)] = numerators
    return np.concatenate([head.view(np.uint8), rest.view(np.uint8)])
