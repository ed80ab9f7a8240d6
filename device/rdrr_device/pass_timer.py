"""GPU time of the compute passes that a device runs, from timestamps at their beginning and end.

While a timer is attached to a device (`Device.timer`), every pass that the device submits is
measured. The gaps between passes are not included. To time single dispatches, see
`rdrr_device.timestamps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rdrr_format.errors import DeviceError

from rdrr_device.buffers import BufferUsage
from rdrr_device.device import Device
from rdrr_device.timestamps import tick_seconds

PASSES = 2048
"""Passes that fit into one query set, with two timestamps each."""


class PassTimer:
    """A timer that sums the GPU time of passes.

    Args:
        device: The device whose passes are measured.

    Raises:
        DeviceError: The device has no timestamps, or their unit is unknown.
    """

    def __init__(self, device: Device) -> None:
        self._gpu: Any = device.wgpu
        self._name = device.info.name
        self._tick = tick_seconds(device)
        self._queries = self._gpu.create_query_set(type="timestamp", count=2 * PASSES)
        usage = BufferUsage.QUERY_RESOLVE | BufferUsage.COPY_SRC
        self._resolved = self._gpu.create_buffer(size=16 * PASSES, usage=usage)
        self._pending = 0
        self._seconds = 0.0
        self._passes = 0

    def reserve(self, passes: int) -> None:
        """Reserve timestamps for the next submission, before any of its passes is recorded.

        Raises:
            DeviceError: The submission has more passes than fit into a query set.
        """
        if passes > PASSES:
            raise DeviceError(
                "too many passes to be timed in one submission",
                expected=f"at most {PASSES}",
                found=passes,
            )
        # Timestamps can only be read between submissions: recorded passes have none yet.
        if self._pending + passes > PASSES:
            self._resolve()

    def writes(self) -> dict[str, Any]:
        """Return the `timestamp_writes` of the next pass, whose timestamps must be reserved."""
        first = 2 * self._pending
        self._pending += 1
        return {
            "query_set": self._queries,
            "beginning_of_pass_write_index": first,
            "end_of_pass_write_index": first + 1,
        }

    def collect(self) -> float:
        """Wait for all passes since the last call and return the sum of their GPU time in seconds.

        Raises:
            DeviceError: Passes have run, but their timestamps show no time at all.
        """
        self._resolve()
        seconds, passes = self._seconds, self._passes
        self._seconds, self._passes = 0.0, 0
        if passes and not seconds:
            raise DeviceError("the adapter's timestamps show no time at all", where=self._name)
        return seconds

    def _resolve(self) -> None:
        """Read the timestamps of all pending passes and add their durations to the sum."""
        if not self._pending:
            return
        count = 2 * self._pending
        encoder = self._gpu.create_command_encoder(label="timestamps")
        encoder.resolve_query_set(self._queries, 0, count, self._resolved, 0)
        self._gpu.queue.submit([encoder.finish()])
        data = self._gpu.queue.read_buffer(self._resolved, 0, 8 * count)
        ticks = np.frombuffer(data, np.uint64).reshape(-1, 2)
        self._seconds += float((ticks[:, 1] - ticks[:, 0]).astype(np.float64).sum()) * self._tick
        self._passes += self._pending
        self._pending = 0


@contextmanager
def timed(device: Device) -> Iterator[PassTimer]:
    """Attach a timer to a device until the end of the `with` block.

    Raises:
        DeviceError: The device has no timestamps, or their unit is unknown.
    """
    timer = PassTimer(device)
    device.timer = timer
    try:
        yield timer
    finally:
        device.timer = None
