"""Opening the GPU device of a load in a thread of its own, while the package is opened.

Drivers take some 0.1 to 0.4 s to open a device, mostly outside of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError

if TYPE_CHECKING:
    from rdrr_device.device import Device

    from rdrr._load_options import LoadOptions


class DeviceOpening:
    """A device that is being opened.

    Args:
        options: Backend and adapter.
    """

    def __init__(self, options: LoadOptions) -> None:
        self._is_taken = False
        pool = ThreadPoolExecutor(1, "open device")
        self._opened: Future[Device] = pool.submit(_open, options)
        pool.shutdown(wait=False)

    def take(self) -> Device:
        """Wait for the device and return it; from then on the caller closes it.

        Raises:
            DeviceError: There is no adapter, none matches, or the adapter does not open a device;
                or the CPU runs the model faster than the only adapter.
        """
        self._is_taken = True
        return self._opened.result()

    def close(self) -> None:
        """Close the device unless it was taken."""
        if not self._is_taken and self._opened.exception() is None:
            self._opened.result().close()


@contextmanager
def opening_device(options: LoadOptions) -> Iterator[DeviceOpening | None]:
    """Open a device beside a `with` block, which closes it at its end unless it was taken.

    Args:
        options: Backend and adapter. With the backend `cpu` nothing is opened and None is yielded.
    """
    if options.backend == "cpu":
        yield None
        return
    with closing(DeviceOpening(options)) as opening:
        yield opening


def _open(options: LoadOptions) -> Device:
    from rdrr_device.adapters import DRIVER_HINT, NO_ADAPTER_HINT

    from rdrr._webgpu import open_device

    try:
        return open_device(options.adapter, options.webgpu, hardware_only=_may_fall_back(options))
    except DeviceError as error:
        if error.hint == DRIVER_HINT:
            error.hint = NO_ADAPTER_HINT
        raise


def _may_fall_back(options: LoadOptions) -> bool:
    """Return whether the CPU backend may take the place of a software adapter.

    Who names an adapter, or sets an option that only GPUs have, gets the adapter.
    """
    asks_for_gpu = options.adapter or options.webgpu != "auto" or options.max_vram is not None
    return (
        options.backend == "auto"
        and not asks_for_gpu
        and options.executor != "persistent"
        and find_spec("torch") is not None
    )
