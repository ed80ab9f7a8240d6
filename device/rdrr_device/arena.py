"""An arena: a set of storage buffers that is freed as a whole.

The caller decides what the buffers hold and when they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rdrr_device.buffers import BufferSlice, align
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch

MORE_BYTES = 1 << 16
"""Fewest bytes of a page of a pool that holds more than was expected."""


class Arena:
    """An owner of storage buffers, which are freed together.

    Args:
        device: Device that creates the buffers.
        label: Prefix of every buffer's label.
    """

    def __init__(self, device: Device, label: str = "arena") -> None:
        self._device = device
        self._label = label
        self._slices: list[BufferSlice] = []
        self._pools: list[Arena] = []

    @property
    def size(self) -> int:
        """Bytes of all buffers, including those of the pools."""
        direct: int = sum(part.buffer.size for part in self._slices)
        return direct + sum(pool.size for pool in self._pools)

    @property
    def device(self) -> Device:
        """The device that creates the buffers."""
        return self._device

    @property
    def max_binding(self) -> int:
        """Size in bytes of the largest buffer that the device can bind."""
        return self._device.max_binding

    def empty(self, label: str, size: int) -> BufferSlice:
        """Create a zeroed storage buffer of at least `size` bytes.

        Raises:
            DeviceError: The buffer is larger than the device can bind, or memory is exhausted.
        """
        buffer = self._device.create_buffer(f"{self._label}.{label}", align(max(size, 4), 16))
        self._slices.append(BufferSlice(buffer, 0, align(max(size, 4), 4)))
        return self._slices[-1]

    def upload(self, label: str, data: Any) -> BufferSlice:
        """Create a storage buffer that holds `data`: a contiguous array, a multiple of 4 bytes."""
        part = self.empty(label, memoryview(data).nbytes)
        self._device.write(part, data)
        return part

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Copy host bytes into a slice, see `Device.write`."""
        self._device.write(target, data, offset)

    def pool(self, label: str, total: int) -> Arena:
        """Return an arena that places its slices in a few large buffers and is freed with this one.

        WebGPU does not allow one dispatch to read and write slices of the same buffer.

        Args:
            label: Prefix of the buffers' labels.
            total: Expected bytes of all slices, each rounded up to a multiple of
                `OFFSET_ALIGNMENT`; the buffers are made as large as that needs.
        """
        pool = _Pool(self._device, f"{self._label}.{label}", total)
        self._pools.append(pool)
        return pool

    @contextmanager
    def temporary(self) -> Iterator[Arena]:
        """Yield an arena on the same device, which is freed at the end of the `with` block."""
        with arena(self._device, f"{self._label}.temporary") as scoped:
            yield scoped

    def run(self, *dispatches: Dispatch) -> None:
        """Submit dispatches on buffers of this device, in order."""
        self._device.submit([self._device.bind(dispatch) for dispatch in dispatches], 1)

    def wait(self) -> None:
        """Wait until the device is idle, which also frees the host's copies of written data."""
        self._device.wait()

    def dispose(self) -> None:
        """Free every buffer; their slices must not be used afterwards."""
        for part in self._slices:
            self._device.free_buffer(part.buffer)
        for pool in self._pools:
            pool.dispose()
        self._slices.clear()
        self._pools.clear()


class _Pool(Arena):
    """The arena that `Arena.pool` returns.

    It cuts slices from the start of the newest buffer until the rest is too small for the next one.
    """

    def __init__(self, device: Device, label: str, total: int) -> None:
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
            self._free = BufferSlice(self._device.create_buffer(name, page), 0, page)
            self._slices.append(self._free)
        part = self._free.range(0, align(max(size, 4), 4))
        self._free = self._free.range(needed, self._free.size - needed)
        self._left -= needed
        return part


@contextmanager
def arena(device: Device, label: str = "arena") -> Iterator[Arena]:
    """Yield an `Arena` that is freed at the end of the `with` block."""
    scoped = Arena(device, label)
    try:
        yield scoped
    finally:
        scoped.dispose()
