"""An arena: a set of storage buffers that is freed as a whole.

The caller decides what the buffers hold and when they are written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rdrr_device.buffers import BufferSlice, align
from rdrr_device.capabilities import Capabilities
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch
from rdrr_device.late_device import LateDevice
from rdrr_device.mapped_buffers import MappedBuffers

MORE_BYTES = 1 << 16
"""Fewest bytes of a page of a pool that holds more than was expected."""


class Arena(ABC):
    """An owner of storage buffers, which are freed together.

    Args:
        capabilities: What the device can do that the buffers belong to.
        label: Prefix of every buffer's label.
    """

    def __init__(self, capabilities: Capabilities, label: str) -> None:
        self.capabilities = capabilities
        self._label = label
        self._slices: list[BufferSlice] = []
        self._pools: list[Arena] = []

    @property
    def size(self) -> int:
        """Bytes of all buffers, including those of the pools."""
        direct: int = sum(part.buffer.size for part in self._slices)
        return direct + sum(pool.size for pool in self._pools)

    @property
    def max_binding(self) -> int:
        """Size in bytes of the largest buffer that the device can bind."""
        return self.capabilities.max_binding

    @abstractmethod
    def empty(self, label: str, size: int) -> BufferSlice:
        """Create a zeroed storage buffer of at least `size` bytes.

        Raises:
            DeviceError: The buffer is larger than the device can bind, or memory is exhausted.
        """

    def upload(self, label: str, data: Any) -> BufferSlice:
        """Create a storage buffer that holds `data`: a contiguous array, a multiple of 4 bytes."""
        part = self.empty(label, memoryview(data).nbytes)
        self.write(part, data)
        return part

    @abstractmethod
    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Copy host bytes into a slice, see `Device.write`."""

    @abstractmethod
    def pool(self, label: str, total: int) -> Arena:
        """Return an arena that places its slices in a few large buffers and is freed with this one.

        WebGPU does not allow one dispatch to read and write slices of the same buffer.

        Args:
            label: Prefix of the buffers' labels.
            total: Expected bytes of all slices, each rounded up to a multiple of
                `OFFSET_ALIGNMENT`; the buffers are made as large as that needs.
        """

    @contextmanager
    @abstractmethod
    def temporary(self) -> Iterator[Arena]:
        """Yield an arena on the same device, which is freed at the end of the `with` block."""

    def mapped_buffers(self, size: int, most: int) -> AbstractContextManager[MappedBuffers | None]:
        """Return what yields buffers for threads to fill, see `Device.mapped_buffers`."""
        del size, most
        return nullcontext()

    @abstractmethod
    def run(self, *dispatches: Dispatch) -> None:
        """Submit dispatches on buffers of this device, in order."""

    def dispose(self) -> None:
        """Free every buffer; their slices must not be used afterwards."""
        for pool in self._pools:
            pool.dispose()
        self._slices.clear()
        self._pools.clear()


class DeviceArena(Arena):
    """An arena on a device, which may still be being opened.

    Args:
        device: Device that creates the buffers.
        label: Prefix of every buffer's label.

    Attributes:
        late: The same device, for what may wait until it is open.
    """

    def __init__(self, device: Device | LateDevice, label: str = "arena") -> None:
        super().__init__(device.capabilities, label)
        if isinstance(device, Device):
            device = LateDevice(device.capabilities, device)
        self.late = device

    @property
    def device(self) -> Device:
        """The device, which is open."""
        return self.late.device

    def empty(self, label: str, size: int) -> BufferSlice:
        """See `Arena.empty`."""
        buffer = self.late.create_buffer(f"{self._label}.{label}", align(max(size, 4), 16))
        self._slices.append(BufferSlice(buffer, 0, align(max(size, 4), 4)))
        return self._slices[-1]

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """See `Arena.write`."""
        self.late.write(target, data, offset)

    def pool(self, label: str, total: int) -> Arena:
        """See `Arena.pool`."""
        pool = _Pool(self.late, f"{self._label}.{label}", total)
        self._pools.append(pool)
        return pool

    @contextmanager
    def temporary(self) -> Iterator[Arena]:
        """See `Arena.temporary`."""
        with arena(self.device, f"{self._label}.temporary") as scoped:
            yield scoped

    def mapped_buffers(self, size: int, most: int) -> AbstractContextManager[MappedBuffers | None]:
        """See `Arena.mapped_buffers`."""
        return self.device.mapped_buffers(size, most)

    def run(self, *dispatches: Dispatch) -> None:
        """See `Arena.run`."""
        self.device.submit([self.device.bind(dispatch) for dispatch in dispatches], 1)

    def dispose(self) -> None:
        """See `Arena.dispose`."""
        for part in self._slices:
            self.late.free_buffer(part.buffer)
        super().dispose()


class _Pool(DeviceArena):
    """The arena that `Arena.pool` returns.

    It cuts slices from the start of the newest buffer until the rest is too small for the next one.
    """

    def __init__(self, device: LateDevice, label: str, total: int) -> None:
        super().__init__(device, label)
        self._left = total
        self._free = BufferSlice(None, 0, 0)

    def empty(self, label: str, size: int) -> BufferSlice:
        """Return a zeroed slice of at least `size` bytes."""
        del label
        needed = align(max(size, 4))
        if self._free.size < needed:
            # What comes beyond the expected bytes is small and shares pages, too.
            more = MORE_BYTES if self._left <= 0 else 0
            page = max(min(max(self._left, more), self.max_binding), needed)
            name = f"{self._label}.{len(self._slices)}"
            self._free = BufferSlice(self.late.create_buffer(name, page), 0, page)
            self._slices.append(self._free)
        part = self._free.range(0, align(max(size, 4), 4))
        self._free = self._free.range(needed, self._free.size - needed)
        self._left -= needed
        return part


@contextmanager
def arena(device: Device, label: str = "arena") -> Iterator[DeviceArena]:
    """Yield a `DeviceArena` that is freed at the end of the `with` block."""
    scoped = DeviceArena(device, label)
    try:
        yield scoped
    finally:
        scoped.dispose()
