"""An arena on paper: what would serve what, and how much memory it would take, without loading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice, align


@dataclass(frozen=True)
class PaperBuffer:
    """The name of a buffer that does not exist."""

    label: str


class PaperArena(Arena):
    """An arena whose buffers exist on paper only."""

    @property
    def size(self) -> int:
        """Bytes that would be held."""
        return sum(one.size for one in self._slices)

    def empty(self, label: str, size: int) -> BufferSlice:
        """A slice of nothing."""
        made = BufferSlice(PaperBuffer(label), 0, align(max(size, 4), 4))
        self._slices.append(made)
        return made

    def upload(self, label: str, data: Any) -> BufferSlice:
        """A slice of nothing, as large as the data."""
        return self.empty(label, memoryview(data).nbytes)

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Check the range and write nothing."""
        target.range(offset, memoryview(data).nbytes)
