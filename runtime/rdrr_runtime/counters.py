"""What a device was asked to do, the host's time for it, and the memory it holds.

Plain sums: `rdrr_runtime.device` keeps them, benchmarks and tests read them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Counters:
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

    def copy(self) -> Counters:
        """The counts as they are now."""
        return Counters(**vars(self))

    def since(self, earlier: Counters) -> Counters:
        """The counts beyond those of an earlier copy."""
        return Counters(
            **{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)}
        )


@dataclass
class HostSeconds:
    """Host time spent in the three kinds of call since the device was opened.

    Attributes:
        write: Copying to the device.
        submit: Recording and submitting programs.
        read: Waiting for the device and copying from it.
    """

    write: float = 0.0
    submit: float = 0.0
    read: float = 0.0

    def copy(self) -> HostSeconds:
        """The sums as they are now."""
        return HostSeconds(self.write, self.submit, self.read)

    def since(self, earlier: HostSeconds) -> HostSeconds:
        """The time beyond that of an earlier copy."""
        return HostSeconds(
            self.write - earlier.write, self.submit - earlier.submit, self.read - earlier.read
        )


@dataclass
class Memory:
    """Bytes of the buffers that the device holds now, and at most so far."""

    live: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        """Count a buffer that was made, or with a negative size one that was freed."""
        self.live += size
        self.peak = max(self.peak, self.live)
