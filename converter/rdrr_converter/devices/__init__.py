"""Devices that encode blocks: the CPU with the codecs, or a GPU that produces the same bits.

Another device is a module with a class that implements `BlockDevice`, and a line in `_DEVICES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from rdrr_device.implementations import NAMES
from rdrr_format.errors import UsageError

from rdrr_converter.devices._base import BLOCK, BlockDevice, Bytes, Weights, portions
from rdrr_converter.devices.torch_device import TorchDevice
from rdrr_converter.devices.webgpu import WebGpuDevice

__all__ = [
    "BLOCK",
    "CPU",
    "DEVICES",
    "BlockDevice",
    "Bytes",
    "PendingDevice",
    "Weights",
    "check_device",
    "open_device",
    "portions",
]

CPU = "cpu"

_DEVICES: Mapping[str, Callable[[str | None], BlockDevice]] = MappingProxyType(
    {
        **{name: partial(WebGpuDevice, webgpu=name) for name in NAMES},
        "cuda": lambda _: TorchDevice("cuda"),
    }
)

DEVICES = (CPU, *_DEVICES)
"""Names of the devices."""


def check_device(name: str, adapter: str | None, engine: str) -> None:
    """Check the options of the device.

    Raises:
        UsageError: The device does not exist, it has no adapters to choose from, or the engine
            does not encode on this machine.
    """
    if name not in DEVICES:
        raise UsageError("`device` has no such value", expected=", ".join(DEVICES), found=name)
    if adapter is not None and name not in NAMES:
        raise UsageError(
            f"`adapter` is only for `device` {' and '.join(NAMES)}", found=f"`device` {name}"
        )
    if name != CPU and engine != "threads":
        raise UsageError(
            "`device` needs the threads of this machine",
            expected="`engine` threads",
            found=f"`engine` {engine}",
        )


class PendingDevice:
    """A device that opens in the background, which takes a second or more."""

    def __init__(self, device: Future[BlockDevice] | None = None) -> None:
        self._device = device

    def check(self) -> None:
        """Raise the error of opening, if it has failed already; do not wait."""
        if self._device is not None and self._device.done():
            self._device.result()

    def wait(self) -> BlockDevice | None:
        """Wait for the device and return it; None for the CPU, whose codecs need no device.

        Raises:
            UsageError: No adapter has the given name.
            DeviceError: This machine has no such device.
        """
        return None if self._device is None else self._device.result()


@contextmanager
def open_device(name: str, adapter: str | None = None) -> Iterator[PendingDevice]:
    """Start opening a device, and close it at the end of the `with` block."""
    if name == CPU:
        yield PendingDevice()
        return
    with ThreadPoolExecutor(1) as pool:
        device = pool.submit(_DEVICES[name], adapter)
        try:
            yield PendingDevice(device)
        finally:
            if device.exception() is None:
                device.result().close()
