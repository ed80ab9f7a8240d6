"""Executors: how a list of phases runs on a device.

The phases are the same for every executor. `DispatchExecutor` launches each by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from rdrr_device.device import Device
from rdrr_device.kernels import Kernel
from rdrr_device.pipelines import BoundDispatch

from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase

_LOG = logging.getLogger(__name__)

Prepared = tuple[BoundDispatch, ...]
"""Phases that are ready to run; the same object each time is submitted the fastest."""


class Executor(Protocol):
    """What runs phases.

    Attributes:
        device: Where.
    """

    device: Device

    def prepare(self, phases: Sequence[Phase]) -> Prepared:
        """Return phases ready to run, in order.

        Raises:
            DeviceError: A shader or a buffer does not suit the device.
        """
        ...

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """Submit phases for `rows` token rows, `times` times over; it does not wait.

        Raises:
            DeviceError: The device is lost.
        """
        ...


class DispatchExecutor:
    """An executor with a dispatch for each phase, all of them in one submission.

    A phase that is prepared again, alone or among others, keeps its bind group.

    Args:
        device: Where.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        # A phase is kept beside what was made of it, so that its id is not given to another.
        self._bound: dict[int, tuple[Phase, BoundDispatch]] = {}
        self._compiled: set[Kernel] = set()

    def prepare(self, phases: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare`."""
        if _LOG.isEnabledFor(logging.DEBUG):
            self._compile_with_progress(phases)
        return tuple(self._bind(one) for one in phases)

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """See `Executor.run`."""
        self.device.submit(prepared, rows, times)

    def _compile_with_progress(self, phases: Sequence[Phase]) -> None:
        """Compile the shaders of phases that were not prepared before, and log how far this is."""
        new = [as_dispatch(one).kernel for one in phases if id(one) not in self._bound]
        kernels = [one for one in dict.fromkeys(new) if one not in self._compiled]
        for number, kernel in enumerate(kernels, start=1):
            _LOG.debug("compiling shaders (%d of %d)", number, len(kernels))
            self.device.pipeline(kernel)
        self._compiled.update(kernels)

    def _bind(self, phase: Phase) -> BoundDispatch:
        found = self._bound.get(id(phase))
        if found is None:
            found = self._bound[id(phase)] = (phase, self.device.bind(as_dispatch(phase)))
        return found[1]
