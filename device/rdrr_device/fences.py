"""A bound for what the host holds of writes that the device has not done yet.

An implementation keeps a copy of the written data until the device has been waited for.
"""

from __future__ import annotations

from collections import deque

from rdrr_device.handle import DeviceHandle
from rdrr_device.readback import Fetch, Readback

FENCE_BYTES = 32 << 20
"""Bytes of written data after which the device can be waited for."""

IN_FLIGHT_BYTES = 4 * FENCE_BYTES
"""Most bytes of written data that wgpu holds on the host before the device is waited for. The host
goes on to copy the newer bytes while the device reads the older ones."""


class WriteFences:
    """Places in the queue that can be waited for, each behind some written data.

    Args:
        handle: The device.
        readback: Makes submissions that can be waited for.
    """

    def __init__(self, handle: DeviceHandle, readback: Readback) -> None:
        self._handle = handle
        self._readback = readback
        self._unfenced = 0
        self._fences: deque[Fetch] = deque()

    def make_room(self, size: int) -> None:
        """Bound what is in flight before `size` bytes are written.

        Raises:
            DeviceError: The device is lost.
        """
        if not self._unfenced or self._unfenced + size <= FENCE_BYTES:
            return
        with self._handle.implementation.errors("writing a buffer"):
            self._fences.append(self._readback.begin(()))
        self._unfenced = 0
        if len(self._fences) * FENCE_BYTES >= IN_FLIGHT_BYTES:
            self._fences.popleft().collect()

    def add(self, size: int) -> None:
        """Count `size` bytes that were written."""
        self._unfenced += size

    def clear(self) -> None:
        """Forget what was written, since the device has done all of it."""
        self._fences.clear()
        self._unfenced = 0
