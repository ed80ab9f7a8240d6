"""Asynchronous copies from the device to the host: started in queue order, collected later.

A copy waits for the work submitted before it, and not for work submitted after it, so the device
stays busy while the host processes the result. Staging buffers are reused. The caller decides what
is copied and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from rdrr_device.buffers import BufferSlice, BufferUsage, Bytes, align
from rdrr_device.handle import DeviceHandle
from rdrr_device.implementations.interface import device_lost

STAGING_BYTES = 64 * 1024
"""Smallest size of a reused staging buffer; larger copies get larger ones."""

MAP_ALIGNMENT = 8
"""Alignment of mapped ranges in WebGPU, in bytes."""


@dataclass(frozen=True)
class Submission:
    """A copy in the queue of the device.

    Attributes:
        index: The submission, see `RawCalls.submit`; 0 without raw calls.
        earlier: The submission before the last part of the program whose results are
            copied; 0 if there is none.
        number: Number of submissions up to this one.
    """

    index: int
    earlier: int
    number: int


class Fetch:
    """A copy of buffer slices that has been submitted and can be collected once.

    Args:
        owner: The `Readback` that submitted the copy.
        staging: Staging buffer that receives the slices, one after the other.
        sizes: Size of each slice in bytes.
        submission: The copy in the queue.
    """

    def __init__(
        self, owner: Readback, staging: Any, sizes: Sequence[int], submission: Submission
    ) -> None:
        self._owner = owner
        self._sizes = sizes
        self._submission = submission
        self.staging = staging

    def collect(self) -> list[Bytes]:
        """Wait for the copy and return the bytes of each slice; may be called only once.

        Raises:
            DeviceError: The device is lost.
        """
        staging, self.staging = self.staging, None
        data = self._owner.map(staging, sum(self._sizes), self._submission)
        ends = np.cumsum(self._sizes)
        return [data[end - size : end] for end, size in zip(ends, self._sizes, strict=True)]


class Readback:
    """The staging buffers of a device and the copies through them.

    Args:
        device: The device to copy from. With its raw calls, collecting a copy waits for that
            submission only; without them, for everything submitted so far.
    """

    def __init__(self, device: DeviceHandle) -> None:
        self._device = device
        self._native = device.native
        self._kept: list[tuple[Any, ReferenceType[Fetch]]] = []

    def begin(self, parts: Sequence[BufferSlice], *, fresh: bool = False) -> Fetch:
        """Submit a copy of buffer slices, which runs after all work submitted so far.

        Args:
            parts: Slices to copy; with none, the result only serves to wait for the device.
            fresh: Use a new staging buffer and do not keep it.
        """
        start = perf_counter()
        sizes = [part.size for part in parts]
        size = max(align(sum(sizes), MAP_ALIGNMENT), MAP_ALIGNMENT)
        staging = self._create(size) if fresh else self._free(size)
        gpu = self._device.wgpu
        encoder = gpu.create_command_encoder(label="read")
        at = 0
        for part in parts:
            encoder.copy_buffer_to_buffer(part.buffer.gpu, part.offset, staging, at, part.size)
            at += part.size
        if not parts:
            # Mapping the buffer waits for this submission only if it uses the buffer.
            encoder.clear_buffer(staging, 0, MAP_ALIGNMENT)
        index = self._submit(encoder.finish())
        self._device.counters.submits += 1
        number = self._device.counters.submits
        fetch = Fetch(self, staging, sizes, Submission(index, self._device.programs[0], number))
        if not fresh:
            self._kept.append((staging, ref(fetch)))
        self._device.host.read += perf_counter() - start
        return fetch

    def map(self, staging: Any, size: int, submission: Submission) -> Bytes:
        """Wait for a submission and return the first `size` bytes of a staging buffer.

        The GPU rests until the host has seen the end of the last submission. The host therefore
        does not sleep through it, except beside a software adapter, which needs the processor.

        Args:
            staging: Staging buffer that the submission fills.
            size: Number of bytes.
            submission: The copy that fills it.

        Raises:
            DeviceError: The device is lost.
        """
        device = self._device
        is_last = submission.number == device.counters.submits and not device.info.software
        start = perf_counter()
        whole = max(align(size, MAP_ALIGNMENT), MAP_ALIGNMENT)
        with device.implementation.errors("reading a buffer"):
            data = self._read(staging, whole, submission, submission.earlier if is_last else 0)
        device.ended = max(device.ended, submission.number)
        counters = device.counters
        counters.maps += 1
        counters.bytes_read += size
        device.host.read += perf_counter() - start
        return data[:size]

    def close(self) -> None:
        """Free the staging buffers."""
        for staging, _ in self._kept:
            staging.destroy()
        self._kept.clear()

    def _read(self, staging: Any, size: int, submission: Submission, awake_after: int) -> Bytes:
        if self._native is not None:
            gpu = self._device.wgpu
            data = self._native.read(gpu, staging, size, submission.index, awake_after)
            if data is None:
                raise device_lost("reading a buffer")
            return data
        # The copy has been submitted already, so the extra submit of "READ" is not needed.
        self._device.implementation.wait(staging.map_async("READ_NOSYNC", 0, size))
        try:
            return np.frombuffer(staging.read_mapped(0, size, copy=False), np.uint8).copy()
        finally:
            staging.unmap()

    def _submit(self, commands: Any) -> int:
        gpu = self._device.wgpu
        if self._native is not None:
            return self._native.submit(gpu, commands)
        gpu.queue.submit([commands])
        return 0

    def _free(self, size: int) -> Any:
        """Return a staging buffer that no fetch is using.

        An unused buffer that is too small is replaced by a larger one.
        """
        for index, (staging, user) in enumerate(self._kept):
            fetch = user()
            # A fetch that was dropped without being collected frees its buffer too: its copy
            # finishes before any later one.
            if fetch is None or fetch.staging is None:
                del self._kept[index]
                if staging.size >= size:
                    return staging
                self._device.memory.add(-staging.size)
                staging.destroy()
                break
        staging = self._create(max(size, STAGING_BYTES))
        self._device.memory.add(staging.size)
        return staging

    def _create(self, size: int) -> Any:
        usage = BufferUsage.MAP_READ | BufferUsage.COPY_DST
        staging = self._device.wgpu.create_buffer(label="staging", size=align(size), usage=usage)
        self._device.counters.buffer_creates += 1
        return staging
