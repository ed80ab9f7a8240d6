"""Large uploads through host memory that is kept, where `Device.write` would make some each time.

Making it takes longer than filling it, so whoever sends tens of megabytes again and again has an
`UploadBuffer`. What is sent and when is not this module's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import DeviceError

from rdrr_device.buffers import BufferSlice, align
from rdrr_device.device import Device
from rdrr_device.wgpu_errors import device_errors

PART_ALIGNMENT = 8
"""Bytes of a part are a multiple of it: where the next one is mapped has to be."""


class UploadBuffer:
    """A buffer that the host fills and the device copies from.

    Args:
        device: The device.
        label: Name for messages.
        size: Bytes that are sent at once, at most.
    """

    def __init__(self, device: Device, label: str, size: int) -> None:
        import wgpu

        self._device = device
        self._label = label
        usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        with device_errors(f"creating buffer {label}"):
            self._buffer = device.wgpu.create_buffer(label=label, size=align(size), usage=usage)
        device.counters.buffer_creates += 1
        device.memory.add(self._buffer.size)

    def write(self, target: BufferSlice, parts: Sequence[npt.NDArray[Any]]) -> None:
        """Copy arrays to the start of a slice, one behind the other, after what was submitted.

        Args:
            target: Where they go.
            parts: Arrays of a multiple of 8 bytes each.

        Raises:
            DeviceError: There are more bytes than the buffer or the slice has, a part has another
                number of bytes, the slice's buffer has been freed, or the device is lost.
        """
        size = sum(part.nbytes for part in parts)
        self._check(target, parts, size)
        if not size:
            return
        start = perf_counter()
        device = self._device
        with device_errors(f"sending through {self._label}"):
            self._fill(parts, size)
            encoder = device.wgpu.create_command_encoder(label=self._label)
            encoder.copy_buffer_to_buffer(self._buffer, 0, target.buffer, target.offset, size)
            device.wgpu.queue.submit([encoder.finish()])
        device.host.write += perf_counter() - start
        device.counters.bytes_written += size
        device.counters.submits += 1

    def close(self) -> None:
        """Free the buffer."""
        self._device.memory.add(-self._buffer.size)
        self._buffer.destroy()

    def _check(self, target: BufferSlice, parts: Sequence[npt.NDArray[Any]], size: int) -> None:
        target.range(0, size)
        self._device.check_alive(target)
        if size > self._buffer.size:
            raise DeviceError(
                "more than the buffer holds",
                where=self._label,
                expected=f"at most {self._buffer.size} bytes",
                found=size,
            )
        odd = next((part.nbytes for part in parts if part.nbytes % PART_ALIGNMENT), None)
        if odd is not None:
            raise DeviceError(
                "parts come in pairs of words",
                where=self._label,
                expected=f"a multiple of {PART_ALIGNMENT} bytes",
                found=odd,
            )

    def _fill(self, parts: Sequence[npt.NDArray[Any]], size: int) -> None:
        """Fill the buffer once the copy before is done."""
        self._buffer.map_async("WRITE", 0, size).sync_wait()
        try:
            at = 0
            for part in parts:
                self._buffer.write_mapped(np.ascontiguousarray(part), at)
                at += part.nbytes
        finally:
            self._buffer.unmap()
