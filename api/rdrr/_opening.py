"""Opening the GPU device of a load in a thread of its own, beside the package.

Drivers take some 0.1 to 0.4 s to open a device, mostly outside of Python. What it can do is
known as soon as its adapter is found, so the graph is also lowered meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_device.device import Device
    from rdrr_device.kernels import Kernel

    from rdrr._load_options import LoadOptions


class DeviceOpening:
    """A device that is being opened.

    Args:
        options: Backend and adapter.
    """

    def __init__(self, options: LoadOptions) -> None:
        self._is_taken = False
        self._kernels: Sequence[Kernel] = ()
        pool = ThreadPoolExecutor(1, "open device")
        self._chosen: Future[AdapterInfo] = pool.submit(_choose, options)
        self._opened: Future[Device] = pool.submit(self._open)
        pool.shutdown(wait=False)

    def adapter(self) -> AdapterInfo | None:
        """Wait for the adapter of the device and return it; None if there is none to use."""
        return None if self._chosen.exception() else self._chosen.result()

    def build_ahead(self, kernels: Sequence[Kernel]) -> None:
        """Let the device start to compile kernels once it is open, unless it is by now."""
        self._kernels = kernels

    def take(self) -> Device:
        """Wait for the device and return it; from then on the caller closes it.

        Raises:
            DeviceError: There is no adapter, none matches, or the adapter does not open a device;
                or the CPU runs the model faster than the only adapter.
        """
        device = self._opened.result()
        self._is_taken = True  # not before: a wait that is interrupted leaves the device to `close`
        return device

    def close(self) -> None:
        """Close the device unless it was taken."""
        if not self._is_taken and self._opened.exception() is None:
            self._opened.result().close()

    def _open(self) -> Device:
        from rdrr_device.device import open_adapter

        device = open_adapter(self._chosen.result())
        with ExitStack() as undo:
            undo.callback(device.close)
            device.build_ahead(self._kernels)
            undo.pop_all()
        return device


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


def _choose(options: LoadOptions) -> AdapterInfo:
    from rdrr_device.adapters import DRIVER_HINT, NO_ADAPTER_HINT

    from rdrr._webgpu import choose_adapter

    hardware_only = _may_fall_back(options)
    try:
        return choose_adapter(options.adapter, options.webgpu, hardware_only=hardware_only)
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
