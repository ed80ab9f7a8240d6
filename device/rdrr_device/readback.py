"""Bytes on their way from the device: copied in their turn among the submissions, fetched later.

A copy waits for what was submitted before it and for nothing that is submitted after it, so the
device can be kept busy while the host looks at what came. Buffers that the host can map are used
again. What is copied and when is not this module's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt

from rdrr_device.buffers import BufferSlice, align
from rdrr_device.handle import DeviceHandle
from rdrr_device.wgpu_errors import device_errors, device_lost

STAGING_BYTES = 64 * 1024  # more where more is fetched at once
MAP_ALIGNMENT = 8

Bytes = npt.NDArray[np.uint8]


class Fetch:
    """Parts of buffers as they are at one point of the queue.

    Args:
        owner: Who made it.
        staging: Where they are copied to, one behind the other.
        sizes: Bytes of each.
        submission: The C library's number of the copy; 0 without that library.
    """

    def __init__(
        self, owner: Readback, staging: Any, sizes: Sequence[int], submission: int
    ) -> None:
        self._owner = owner
        self._sizes = sizes
        self._submission = submission
        self.staging = staging

    def collect(self) -> list[Bytes]:
        """Wait for the copy; the bytes of each part. To be called once.

        Raises:
            DeviceError: The device is lost.
        """
        staging, self.staging = self.staging, None
        with device_errors("reading a buffer"):
            data = self._owner.map(staging, sum(self._sizes), self._submission)
        ends = np.cumsum(self._sizes)
        return [data[end - size : end] for end, size in zip(ends, self._sizes, strict=True)]


class Readback:
    """Copies to the host, and the buffers for them.

    Args:
        device: Where from. Its raw calls, if it has them, wait for one submission alone.
    """

    def __init__(self, device: DeviceHandle) -> None:
        self._device = device
        self._native = device.native
        self._kept: list[tuple[Any, ReferenceType[Fetch]]] = []

    def begin(self, parts: Sequence[BufferSlice], *, fresh: bool = False) -> Fetch:
        """Copy parts of buffers once all that has been submitted is done.

        Args:
            parts: What to copy; none to wait only.
            fresh: Use a new buffer, and not again.
        """
        start = perf_counter()
        sizes = [part.size for part in parts]
        size = max(align(sum(sizes), MAP_ALIGNMENT), MAP_ALIGNMENT)
        staging = self._create(size) if fresh else self._free(size)
        gpu = self._device.wgpu
        encoder = gpu.create_command_encoder(label="read")
        at = 0
        for part in parts:
            encoder.copy_buffer_to_buffer(part.buffer, part.offset, staging, at, part.size)
            at += part.size
        if not parts:
            encoder.clear_buffer(staging, 0, MAP_ALIGNMENT)
        submission = self._submit(encoder.finish())
        fetch = Fetch(self, staging, sizes, submission)
        if not fresh:
            self._kept.append((staging, ref(fetch)))
        self._device.counters.submits += 1
        self._device.host.read += perf_counter() - start
        return fetch

    def map(self, staging: Any, size: int, submission: int) -> Bytes:
        """The first bytes of a buffer after a submission."""
        start = perf_counter()
        whole = max(align(size, MAP_ALIGNMENT), MAP_ALIGNMENT)
        if self._native is not None:
            data = self._native.read(self._device.wgpu, staging, whole, submission)
            if data is None:
                raise device_lost("reading a buffer")
        else:
            # The submit before it orders the copy: the wrapper's own extra submit is not needed.
            staging.map_async("READ_NOSYNC", 0, whole).sync_wait()
            try:
                data = bytearray(staging.read_mapped(0, whole, copy=False))
            finally:
                staging.unmap()
        counters = self._device.counters
        counters.maps += 1
        counters.bytes_read += size
        self._device.host.read += perf_counter() - start
        return np.frombuffer(data, np.uint8)[:size]

    def close(self) -> None:
        """Free the buffers."""
        for staging, _ in self._kept:
            staging.destroy()
        self._kept.clear()

    def _submit(self, commands: Any) -> int:
        gpu = self._device.wgpu
        if self._native is not None:
            return self._native.submit(gpu, commands)
        gpu.queue.submit([commands])
        return 0

    def _free(self, size: int) -> Any:
        """A buffer that nobody waits for; a larger one takes the place of one that is too small."""
        for index, (staging, user) in enumerate(self._kept):
            fetch = user()
            # A fetch that was given up is gone; its copy is done before any later one.
            if fetch is None or fetch.staging is None:
                del self._kept[index]
                if staging.size >= size:
                    return staging
                self._device.memory.add(-staging.size)
                staging.destroy()
                break
        made = self._create(max(size, STAGING_BYTES))
        self._device.memory.add(made.size)
        return made

    def _create(self, size: int) -> Any:
        import wgpu

        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        made = self._device.wgpu.create_buffer(label="staging", size=align(size), usage=usage)
        self._device.counters.buffer_creates += 1
        return made
