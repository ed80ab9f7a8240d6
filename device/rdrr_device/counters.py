"""Counts of the work of a device, host time spent on it, and the memory of its buffers.

The modules of this package update them; benchmarks and tests read them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from rdrr_format.errors import DeviceError


@dataclass
class _Sums:
    """Counters that only grow."""

    def copy(self) -> Self:
        """Return a copy of the current values."""
        return type(self)(**vars(self))

    def since(self, earlier: Self) -> Self:
        """Return the differences to an earlier copy."""
        names = (counter.name for counter in fields(self))
        return type(self)(**{name: getattr(self, name) - getattr(earlier, name) for name in names})


@dataclass
class Counters(_Sums):
    """Number of operations and bytes since the device was opened.

    Attributes:
        dispatches: Dispatches recorded into compute passes.
        submits: Command buffers submitted to the queue.
        buffer_creates: Buffers created.
        bind_group_creates: Bind groups created.
        pipeline_creates: Compute pipelines that were asked for, each counted once.
        bytes_written: Bytes copied to the device.
        bytes_read: Bytes copied to the host.
        maps: Buffers mapped for reading.
        uniform_creates: Uniform buffers created; only benchmarks use uniform buffers.
        uniform_hits: Uniform buffers that were found in a cache instead.
    """

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
    """Host time in seconds spent in three kinds of calls since the device was opened.

    Attributes:
        write: Copying data to the device.
        submit: Recording and submitting programs.
        read: Waiting for the device and copying data from it.
    """

    write: float = 0.0
    submit: float = 0.0
    read: float = 0.0


@dataclass
class Memory:
    """Memory of the device's buffers.

    Attributes:
        live: Bytes of the buffers that exist now.
        peak: Largest value of `live` so far.
        limit: Most bytes of `live` that a further buffer may lead to; None for no limit.
    """

    live: int = 0
    peak: int = 0
    limit: int | None = None

    def check(self, label: str, size: int) -> None:
        """Check that a further buffer stays within the limit.

        Raises:
            DeviceError: It does not.
        """
        if self.limit is not None and self.live + size > self.limit:
            raise DeviceError(
                "a further buffer takes more GPU memory than `max_vram` allows",
                where=label,
                expected=f"at most {self.limit:,} bytes",
                found=f"{self.live:,} + {size:,}",
                hint="generate fewer texts at a time, or allow more",
            )

    def add(self, size: int) -> None:
        """Count a buffer of `size` bytes that was created, or freed if `size` is negative."""
        self.live += size
        self.peak = max(self.peak, self.live)
