"""The state of an opened GPU device that the parts of `rdrr_device.device.Device` share.

This is plain data and one protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rdrr_device.adapters import AdapterInfo
from rdrr_device.counters import Counters, HostSeconds, Memory
from rdrr_device.implementations.interface import Implementation, RawCalls


class PassClock(Protocol):
    """A timer of the compute passes that a device submits, see `rdrr_device.pass_timer`."""

    def reserve(self, passes: int) -> None:
        """Reserve timestamps for the next submission, before any of its passes is recorded."""

    def writes(self) -> dict[str, Any]:
        """Return the `timestamp_writes` of the next pass, whose timestamps must be reserved."""


@dataclass
class DeviceHandle:
    """A `GPUDevice` with its adapter and counters.

    Attributes:
        wgpu: The `GPUDevice`.
        info: The adapter that the device was opened on.
        implementation: The implementation of WebGPU.
        counters: Exact counts of GPU work.
        memory: Memory of the device's buffers.
        host: Host time of writes, submissions and reads.
        timer: Timer that measures every compute pass; None if passes are not measured.
        ended: Number of submissions that are known to have ended.
        programs: The two latest submissions of programs, see `RawCalls.submit`; 0 for none.
    """

    wgpu: Any
    info: AdapterInfo
    implementation: Implementation
    counters: Counters = field(default_factory=Counters)
    memory: Memory = field(default_factory=Memory)
    host: HostSeconds = field(default_factory=HostSeconds)
    timer: PassClock | None = None
    ended: int = 0
    programs: tuple[int, int] = (0, 0)

    @property
    def native(self) -> RawCalls | None:
        """Raw calls; None if the installed version of the implementation does not have them."""
        return self.implementation.raw

    @property
    def is_idle(self) -> bool:
        """Whether all submitted work has been waited for."""
        return self.ended == self.counters.submits
