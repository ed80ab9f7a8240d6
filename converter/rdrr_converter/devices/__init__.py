"""Which device encodes blocks: the CPU by the codecs, or a GPU with the same bits.

A further device is a module with a `BlockDevice`, and a line in `_DEVICES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import MappingProxyType

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
    "Opening",
    "Weights",
    "check_device",
    "open_device",
    "portions",
]

CPU = "cpu"

_DEVICES: Mapping[str, Callable[[str | None], BlockDevice]] = MappingProxyType(
    {"wgpu": WebGpuDevice, "cuda": lambda _: TorchDevice("cuda")}
)

DEVICES = (CPU, *_DEVICES)
"""Names of the devices."""


def check_device(name: str, adapter: str | None, engine: str) -> None:
    """Refuse what means nothing.

    Raises:
        UsageError: There is no such device, it has no adapters, or the engine encodes elsewhere.
    """
    if name not in DEVICES:
        raise UsageError("`device` has no such value", expected=", ".join(DEVICES), found=name)
    if adapter is not None and name != "wgpu":
        raise UsageError("`adapter` is only for `device` wgpu", found=f"`device` {name}")
    if name != CPU and engine != "threads":
        raise UsageError(
            "a GPU encodes only for threads of this machine",
            expected="`engine` threads",
            found=f"`engine` {engine}",
        )


class Opening:
    """A device that is opened in the background, which takes a second or more."""

    def __init__(self, device: Future[BlockDevice] | None = None) -> None:
        self._device = device

    def check(self) -> None:
        """Raise what went wrong, if it is known already."""
        if self._device is not None and self._device.done():
            self._device.result()

    def wait(self) -> BlockDevice | None:
        """The device; None for the CPU, whose codecs need none.

        Raises:
            UsageError: No adapter is called so.
            DeviceError: There is no such device on this machine.
        """
        return None if self._device is None else self._device.result()


@contextmanager
def open_device(name: str, adapter: str | None = None) -> Iterator[Opening]:
    """A device, for the length of a `with` block; it is begun to be opened at once."""
    if name == CPU:
        yield Opening()
        return
    with ThreadPoolExecutor(1) as pool:
        device = pool.submit(_DEVICES[name], adapter)
        try:
            yield Opening(device)
        finally:
            if device.exception() is None:
                device.result().close()
