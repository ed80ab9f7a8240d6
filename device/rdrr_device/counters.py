"""What a device was asked to do, the host's time for it, and the memory it holds.

Plain sums: `rdrr_device.device` keeps them, benchmarks and tests read them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass
class _Sums:
    """Figures that only grow."""

    def copy(self) -> Self:
        """The sums as they are now."""
        return type(self)(**vars(self))

    def since(self, earlier: Self) -> Self:
        """The sums beyond those of an earlier copy."""
        names = (one.name for one in fields(self))
        return type(self)(**{name: getattr(self, name) - getattr(earlier, name) for name in names})


@dataclass
class Counters(_Sums):
    """What the device was asked to do since it was opened."""

    dispatches: int = 0
    submits: int = 0
    buffer_creates: int = 0
    bind_group_creates: int = 0
    pipeline_creates: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    maps: int = 0
    uniform_creates: int = 0
    uniform_hits: int = 0


@dataclass
class HostSeconds(_Sums):
    """Host time spent in the three kinds of call since the device was opened.

    Attributes:
        write: Copying to the device.
        submit: Recording and submitting programs.
        read: Waiting for the device and copying from it.
    """

    write: float = 0.0
    submit: float = 0.0
    read: float = 0.0


@dataclass
class Memory:
    """Bytes of the buffers that the device holds now, and at most so far."""

    live: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        """Count a buffer that was made, or with a negative size one that was freed."""
        self.live += size
        self.peak = max(self.peak, self.live)
