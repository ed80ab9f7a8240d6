"""An arena for dry runs: it allocates nothing and counts the bytes that a model would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice, align
from rdrr_device.device import Device


@dataclass(frozen=True)
class DryRunBuffer:
    """A stand-in for a `GPUBuffer` that is never created.

    Attributes:
        label: Name of the buffer.
        size: Bytes that the buffer would have.
    """

    label: str
    size: int


class DryRunArena(Arena):
    """An arena that allocates no buffers and writes no data.

    Args:
        device: Device whose limits apply.
        label: Prefix of every buffer's label.
        alignment: Bytes that the sizes of buffers are rounded up to a multiple of.
    """

    def __init__(self, device: Device, label: str = "dry run", alignment: int = 4) -> None:
        super().__init__(device, label)
        self._alignment = alignment

    def pool(self, label: str, total: int) -> DryRunArena:
        """Return a dry-run arena whose slices count as many bytes as they would take in a pool."""
        del total
        pool = DryRunArena(self._device, label, OFFSET_ALIGNMENT)
        self._pools.append(pool)
        return pool

    def empty(self, label: str, size: int) -> BufferSlice:
        """Return a slice of a stand-in of at least `size` bytes."""
        size = align(max(size, 4), self._alignment)
        part = BufferSlice(DryRunBuffer(label, size), 0, size)
        self._slices.append(part)
        return part

    def upload(self, label: str, data: Any) -> BufferSlice:
        """Return a slice of a stand-in that is as large as the data."""
        return self.empty(label, memoryview(data).nbytes)

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Check that the data fits the slice, and write nothing."""
        target.range(offset, memoryview(data).nbytes)
