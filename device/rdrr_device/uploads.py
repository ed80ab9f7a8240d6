"""Large uploads through a reused staging buffer.

`Device.write` allocates host memory for each call. Allocating it takes longer than filling it, so
callers that upload tens of megabytes repeatedly use an `UploadBuffer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import DeviceError

from rdrr_device.buffers import BufferSlice, BufferUsage, align
from rdrr_device.device import Device

PART_ALIGNMENT = 8
"""Alignment of the size of a part, so that the next part begins at an offset that can be mapped."""


class UploadBuffer:
    """A staging buffer that the host fills and the device copies from.

    Args:
        device: The device.
        label: Name for messages.
        size: Most bytes of one upload.
    """

    def __init__(self, device: Device, label: str, size: int) -> None:
        self._device = device
        self._label = label
        usage = BufferUsage.MAP_WRITE | BufferUsage.COPY_SRC
        with device.implementation.errors(f"creating buffer {label}"):
            self._buffer = device.wgpu.create_buffer(label=label, size=align(size), usage=usage)
        device.counters.buffer_creates += 1
        device.memory.add(self._buffer.size)

    def write(self, target: BufferSlice, parts: Sequence[npt.NDArray[Any]]) -> None:
        """Copy arrays one after the other to the start of a slice, in queue order.

        Args:
            target: Destination.
            parts: Arrays, each of a multiple of 8 bytes.

        Raises:
            DeviceError: The arrays have more bytes than the staging buffer or the slice, the size
                of one is not a multiple of 8 bytes, the slice's buffer has been freed, or the
                device is lost.
        """
        size = sum(part.nbytes for part in parts)
        self._check(target, parts, size)
        if not size:
            return
        start = perf_counter()
        device = self._device
        with device.implementation.errors(f"sending through {self._label}"):
            self._fill(parts, size)
            encoder = device.wgpu.create_command_encoder(label=self._label)
            encoder.copy_buffer_to_buffer(self._buffer, 0, target.buffer.gpu, target.offset, size)
            device.wgpu.queue.submit([encoder.finish()])
        device.host.write += perf_counter() - start
        device.counters.bytes_written += size
        device.counters.submits += 1

    def close(self) -> None:
        """Free the staging buffer."""
        self._device.memory.add(-self._buffer.size)
        self._buffer.destroy()

    def _check(self, target: BufferSlice, parts: Sequence[npt.NDArray[Any]], size: int) -> None:
        target.range(0, size)
        self._device.check_alive(target)
        if size > self._buffer.size:
            raise DeviceError(
                "the upload is larger than the staging buffer",
                where=self._label,
                expected=f"at most {self._buffer.size} bytes",
                found=size,
            )
        unaligned = next((part.nbytes for part in parts if part.nbytes % PART_ALIGNMENT), None)
        if unaligned is not None:
            raise DeviceError(
                "the size of a part of the upload is not aligned",
                where=self._label,
                expected=f"a multiple of {PART_ALIGNMENT} bytes",
                found=unaligned,
            )

    def _fill(self, parts: Sequence[npt.NDArray[Any]], size: int) -> None:
        """Fill the staging buffer once the previous copy from it is done."""
        self._device.implementation.wait(self._buffer.map_async("WRITE", 0, size))
        try:
            at = 0
            for part in parts:
                self._buffer.write_mapped(np.ascontiguousarray(part), at)
                at += part.nbytes
        finally:
            self._buffer.unmap()
