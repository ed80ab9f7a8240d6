"""An arena for dry runs: it allocates nothing and counts the bytes that a model would take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice, align
from rdrr_device.capabilities import Capabilities
from rdrr_device.kernels import Dispatch


@dataclass(frozen=True)
class DryRunBuffer:
    """A stand-in for a `GPUBuffer` that is never created.

    Attributes:
        label: Name of the buffer.
        size: Bytes that the buffer would have.
    """

    label: str
    size: int


@dataclass(frozen=True)
class DryRunDevice:
    """A stand-in for a `Device` on which nothing is run.

    Attributes:
        capabilities: What the device can do.
    """

    capabilities: Capabilities


class DryRunArena(Arena):
    """An arena that allocates no buffers and writes no data.

    Args:
        capabilities: What the device can do that the buffers are meant for.
        label: Prefix of every buffer's label.
        alignment: Bytes that the sizes of buffers are rounded up to a multiple of.
    """

    def __init__(
        self, capabilities: Capabilities, label: str = "dry run", alignment: int = 4
    ) -> None:
        super().__init__(capabilities, label)
        self._alignment = alignment

    def pool(self, label: str, total: int) -> DryRunArena:
        """Return a dry-run arena whose slices count as many bytes as they would take in a pool."""
        del total
        pool = DryRunArena(self.capabilities, label, OFFSET_ALIGNMENT)
        self._pools.append(pool)
        return pool

    def empty(self, label: str, size: int) -> BufferSlice:
        """Return a slice of a stand-in of at least `size` bytes."""
        size = align(max(size, 4), self._alignment)
        part = BufferSlice(DryRunBuffer(label, size), 0, size)
        self._slices.append(part)
        return part

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Check that the data fits the slice, and write nothing."""
        target.range(offset, memoryview(data).nbytes)

    @contextmanager
    def temporary(self) -> Iterator[DryRunArena]:
        """Yield a dry-run arena, whose bytes are not counted here."""
        yield DryRunArena(self.capabilities, f"{self._label}.temporary")

    def run(self, *dispatches: Dispatch) -> None:
        """Run nothing."""
        del dispatches
