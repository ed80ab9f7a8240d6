"""Executors: how a list of phases runs on a device.

The phases are the same for every executor. `DispatchExecutor` launches each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch

from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase

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

    def prepare(self, phases: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare`."""
        return tuple(self._bind(one) for one in phases)

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """See `Executor.run`."""
        self.device.submit(prepared, rows, times)

    def _bind(self, phase: Phase) -> BoundDispatch:
        found = self._bound.get(id(phase))
        if found is None:
            found = self._bound[id(phase)] = (phase, self.device.bind(as_dispatch(phase)))
        return found[1]
