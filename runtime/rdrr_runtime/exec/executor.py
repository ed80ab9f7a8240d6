"""Executors, which run a list of phases on a device.

All executors run the same phases. `DispatchExecutor` launches each phase as its own dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch

from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase

Prepared = tuple[BoundDispatch, ...]
"""Phases that are ready to run. Submitting the same object again is the fastest, since the device
recognizes it."""


class Executor(Protocol):
    """The interface of an executor, which runs phases on a device.

    Attributes:
        device: The device.
    """

    device: Device

    def prepare(self, phases: Sequence[Phase]) -> Prepared:
        """Return the phases ready to run, in order.

        Raises:
            DeviceError: The device does not support a shader, or cannot bind a buffer.
        """
        ...

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """Submit phases for `rows` token rows, `times` times in a row, without waiting for them.

        Raises:
            DeviceError: The device is lost.
        """
        ...


class DispatchExecutor:
    """An executor that launches each phase as a dispatch, all of them in one submission.

    Each phase is bound once, even if it is prepared several times.

    Args:
        device: The device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        # The phase is kept as well: Python could otherwise reuse its id for another phase.
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
