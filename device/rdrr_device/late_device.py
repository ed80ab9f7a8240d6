"""A device that may still be being opened: plans are made meanwhile, and need its buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rdrr_device.buffers import Buffer, BufferSlice
from rdrr_device.capabilities import Capabilities
from rdrr_device.device import Device


class LateDevice:
    """A device that may still be being opened; what arenas ask of it waits until it is open.

    Args:
        capabilities: What the device can do.
        device: The device, if it is open.
    """

    def __init__(self, capabilities: Capabilities, device: Device | None = None) -> None:
        self.capabilities = capabilities
        self._device = device
        self._waiting: list[Callable[[Device], None]] = []

    @property
    def device(self) -> Device:
        """The device, which is open."""
        assert self._device is not None, "only what is written may wait for the device"
        return self._device

    def create_buffer(self, label: str, size: int) -> Buffer:
        """Return a new buffer, see `Device.create_buffer`."""
        if self._device is not None:
            return self._device.create_buffer(label, size)
        buffer = Buffer(label, size)

        def create(device: Device) -> None:
            buffer.gpu = device.create_buffer(label, size).gpu

        self._waiting.append(create)
        return buffer

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Copy host bytes, which must not change any more, into a slice, see `Device.write`."""
        if self._device is not None:
            self._device.write(target, data, offset)
        else:
            self._waiting.append(lambda device: device.write(target, data, offset))

    def free_buffer(self, buffer: Buffer) -> None:
        """Free a buffer, see `Device.free_buffer`."""
        if self._device is not None:
            self._device.free_buffer(buffer)

    def opened(self, device: Device) -> None:
        """Create and write what has waited for the device, in order.

        Raises:
            DeviceError: There is too little memory, or the device is lost.
        """
        self._device = device
        waiting, self._waiting = self._waiting, []
        while waiting:
            waiting.pop(0)(device)  # what has been written need not stay on the host
