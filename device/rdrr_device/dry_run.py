"""An arena on paper: what would serve what, and how much memory it would take, without loading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice, align
from rdrr_device.device import Device


@dataclass(frozen=True)
class DryRunBuffer:
    """A buffer that does not exist.

    Attributes:
        label: Its name.
        size: Bytes that it would have.
    """

    label: str
    size: int


class DryRunArena(Arena):
    """An arena whose buffers exist on paper only.

    Args:
        device: Device whose limits count.
        label: As of `Arena`.
        alignment: Of the sizes of buffers.
    """

    def __init__(self, device: Device, label: str = "paper", alignment: int = 4) -> None:
        super().__init__(device, label)
        self._alignment = alignment

    def pool(self, label: str, total: int) -> DryRunArena:
        """Return an arena on paper whose slices take as many bytes as they would in a pool."""
        del total
        made = DryRunArena(self._device, label, OFFSET_ALIGNMENT)
        self._pools.append(made)
        return made

    def empty(self, label: str, size: int) -> BufferSlice:
        """A slice of nothing."""
        size = align(max(size, 4), self._alignment)
        made = BufferSlice(DryRunBuffer(label, size), 0, size)
        self._slices.append(made)
        return made

    def upload(self, label: str, data: Any) -> BufferSlice:
        """A slice of nothing, as large as the data."""
        return self.empty(label, memoryview(data).nbytes)

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Check the range and write nothing."""
        target.range(offset, memoryview(data).nbytes)
