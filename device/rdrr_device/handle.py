"""An opened GPU device as the parts of `rdrr_device.device.Device` share it.

Plain data and one protocol; what is done with it is the business of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rdrr_device.adapters import AdapterInfo
from rdrr_device.counters import Counters, HostSeconds, Memory
from rdrr_device.native import Native


class PassClock(Protocol):
    """Measures the compute passes that a device submits, see `rdrr_device.pass_timer`."""

    def reserve(self, passes: int) -> None:
        """Make room for the passes of the next submission; called before any is recorded."""
        ...

    def writes(self) -> dict[str, Any]:
        """Return the `timestamp_writes` of the next pass, for which there must be room."""
        ...


@dataclass
class DeviceHandle:
    """A `GPUDevice`, its adapter, and what is counted of it.

    Attributes:
        wgpu: The `GPUDevice`.
        info: The adapter it belongs to.
        native: Raw calls into wgpu-native; None where this wgpu-py does not have them.
        counters: Exact counts of GPU work.
        memory: Bytes of its buffers.
        host: Host time of writes, submissions and reads.
        timer: Measures every pass while it is set.
    """

    wgpu: Any
    info: AdapterInfo
    native: Native | None
    counters: Counters = field(default_factory=Counters)
    memory: Memory = field(default_factory=Memory)
    host: HostSeconds = field(default_factory=HostSeconds)
    timer: PassClock | None = None
