"""Mapped buffers that threads fill, so that a write of what they hold is a copy on the device.

`Device.write` copies what it is given to memory that the implementation allocates for each call,
which one thread does for all bytes of a model. What threads have read into a mapped buffer need not
be copied again by the host.

A device cannot copy from a buffer that is mapped. Copies are therefore noted until something is
submitted that may read their destinations, and then the host gives up the memory of their buffers.
Until then it may read the memory, but slowly: beside an H200, loads that read some of it back took
longer than those without mapped buffers, since a processor does not cache it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_device.buffers import BufferSlice, BufferUsage, Bytes
from rdrr_device.handle import DeviceHandle
from rdrr_device.implementations.interface import RawCalls


class MappedBuffer:
    """A buffer for the host to fill.

    Attributes:
        buffer: The `GPUBuffer`.
        content: Its memory, uint8 [size]; it may be touched while the buffer is mapped.
        is_mapped: Whether the host may touch the memory.
        copies: First byte and destination of each copy that has been noted.
        mapping: Promise of the memory, once the device has been given copies from the buffer.
    """

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.content: Bytes = np.zeros(0, np.uint8)
        self.is_mapped = False
        self.copies: list[tuple[int, BufferSlice]] = []
        self.mapping: Any = None

    def offset_of(self, data: npt.NDArray[Any]) -> int | None:
        """Return where contiguous data begins in the memory; None if it lies elsewhere."""
        offset: int = data.ctypes.data - self.content.ctypes.data
        return offset if offset >= 0 and offset + data.nbytes <= self.content.nbytes else None


class MappedBuffers:
    """Some mapped buffers, which are filled and copied from in turn.

    Args:
        device: The device.
        native: Its raw calls.
        size: Bytes of each buffer.
        most: Number of buffers; they are created as they are needed.
    """

    def __init__(self, device: DeviceHandle, native: RawCalls, size: int, most: int) -> None:
        self._device, self._native = device, native
        self._size, self.most = size, most
        self._created: list[MappedBuffer] = []
        self._taken: list[MappedBuffer] = []
        self._released: list[MappedBuffer] = []
        self._free: deque[MappedBuffer] = deque()

    def take(self) -> MappedBuffer:
        """Return a buffer to fill, once the device does not read it any more.

        Fewer than `most` buffers may be taken at the same time.

        Raises:
            DeviceError: Memory is exhausted, or the device is lost.
        """
        if len(self._created) < self.most:
            taken = self._create()
        else:
            if not self._free:
                self.flush()
            taken = self._free.popleft()
            if not taken.is_mapped:
                with self._device.implementation.errors("mapping a buffer"):
                    self._device.implementation.wait(taken.mapping)
                self._map(taken)
        self._taken.append(taken)
        return taken

    def release(self, taken: MappedBuffer) -> None:
        """Give a buffer back, whose memory the caller does not touch any more."""
        self._taken.remove(taken)
        self._released.append(taken)

    def send(self, data: Any, target: BufferSlice) -> bool:
        """Note a copy of data to a slice of its size, if a buffer that is taken holds it.

        Returns:
            Whether one does, at an offset that devices can copy from.
        """
        if isinstance(data, np.ndarray):
            for taken in self._taken:
                offset = taken.offset_of(data)
                if offset is not None and offset % 4 == 0:
                    taken.copies.append((offset, target))
                    return True
        return False

    def flush(self) -> None:
        """Submit the copies that have been noted, before what reads their destinations.

        Raises:
            DeviceError: The device is lost.
        """
        with self._device.implementation.errors("copying from mapped buffers"):
            self._submit([each for each in (*self._taken, *self._released) if each.copies])
            for released in self._released:
                if not released.is_mapped:
                    released.mapping = released.buffer.map_async("WRITE", 0, self._size)
        self._free.extend(self._released)
        self._released.clear()

    def close(self) -> None:
        """Free the buffers."""
        for created in self._created:
            created.buffer.destroy()
        self._device.memory.add(-self._size * len(self._created))
        self._created.clear()

    def _create(self) -> MappedBuffer:
        usage = BufferUsage.MAP_WRITE | BufferUsage.COPY_SRC
        with self._device.implementation.errors("creating a mapped buffer"):
            buffer = self._device.wgpu.create_buffer(
                label="mapped", size=self._size, usage=usage, mapped_at_creation=True
            )
        self._device.counters.buffer_creates += 1
        self._device.memory.add(self._size)
        created = MappedBuffer(buffer)
        self._map(created)
        self._created.append(created)
        return created

    def _map(self, mapped: MappedBuffer) -> None:
        mapped.content = self._native.mapped(mapped.buffer, self._size)
        mapped.is_mapped = True

    def _submit(self, sources: list[MappedBuffer]) -> None:
        if not sources:
            return
        encoder = self._device.wgpu.create_command_encoder(label="mapped")
        for source in sources:
            if source.is_mapped:
                source.buffer.unmap()
                source.is_mapped = False
            for offset, target in source.copies:
                encoder.copy_buffer_to_buffer(
                    source.buffer, offset, target.buffer.gpu, target.offset, target.size
                )
            source.copies.clear()
        self._device.wgpu.queue.submit([encoder.finish()])
        self._device.counters.submits += 1
