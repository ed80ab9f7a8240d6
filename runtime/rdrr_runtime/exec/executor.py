"""Executors, which run a list of phases on a device.

All executors run the same phases. `DispatchExecutor` launches each phase as its own dispatch;
`rdrr_runtime.exec.persistent` has one that runs a whole pass in a single dispatch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.kernels import Kernel
from rdrr_device.pipelines import BoundDispatch

from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase

_LOG = logging.getLogger(__name__)

Prepared = tuple[BoundDispatch, ...]
"""Phases that are ready to run. Submitting the same object again is the fastest, since the device
recognizes it."""


@dataclass(frozen=True, eq=False)
class TokenPass:
    """A pass over a row of each sequence that ends with its next token; it may be one dispatch.

    Attributes:
        lowered: The pass as dispatches.
        lower: Lowers the same pass for the workgroups of one dispatch.
        sampling: Phases that choose the next token instead of those of the pass; None if there are
            none. They depend on the options of a generation, so they are always launched.
    """

    lowered: Pass
    lower: Callable[[Grid], Pass]
    sampling: tuple[Phase, ...] | None = None

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases of the pass as dispatches, in order."""
        lowered = self.lowered
        return (
            *lowered.body,
            *lowered.head,
            *(lowered.sample if self.sampling is None else self.sampling),
        )

    @property
    def behind(self) -> tuple[Phase, ...]:
        """The phases that are launched behind one dispatch."""
        if self.sampling is not None:
            return self.sampling
        return () if self.lowered.picks is None else self.lowered.sample


class Executor(Protocol):
    """The interface of an executor, which runs phases on a device.

    Attributes:
        device: The device.
    """

    device: Device

    @property
    def gave_up(self) -> BufferSlice | None:
        """A word in GPU memory that a pass sets if its workgroups stop waiting for each other.

        It stays 0 as long as passes of `prepare_whole` run to their end. None if no pass can stop
        early, as when each phase is a dispatch.
        """

    def another(self, arena: Arena) -> Executor:
        """Return an executor of the same kind for other passes; an arena owns its buffers."""

    def at_once(self, prepared: Prepared) -> int:
        """Return how many of these passes the host records in the time of a pass in dispatches."""

    def recover(self) -> None:
        """Launch each phase by itself from now on, and clear the word `gave_up`.

        The caller runs the passes that did not end again; they changed no token.
        """

    def settle(self) -> None:
        """Finish what is prepared and chosen beside the passes, so that their times are steady."""

    def prepare(self, phases: Sequence[Phase]) -> Prepared:
        """Return the phases ready to run, in order.

        Raises:
            DeviceError: The device does not support a shader, or cannot bind a buffer.
        """

    def prepare_whole(self, token_pass: TokenPass) -> Prepared:
        """Return a pass ready to run, in one dispatch if the executor can.

        The caller reads `gave_up` after each run, and runs passes again that did not end.

        Raises:
            DeviceError: The device does not support a shader, or cannot bind a buffer.
        """

    def prepare_behind(self, phases: Sequence[Phase]) -> Prepared:
        """Return phases ready to run behind a pass of `prepare_whole`.

        They do nothing behind a pass that gave up, so that the pass can run again.

        Raises:
            DeviceError: The device does not support a shader, or cannot bind a buffer.
        """

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """Submit phases for `rows` token rows, `times` times in a row, without waiting for them.

        Raises:
            DeviceError: The device is lost.
        """


class DispatchExecutor:
    """An executor that launches each phase as a dispatch, all of them in one submission.

    Each phase is bound once, even if it is prepared several times.

    Args:
        device: The device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        # By the id of the phase, and whether it always runs.
        # The phase is kept as well: Python could otherwise reuse its id for another phase.
        self._bound: dict[tuple[int, bool], tuple[Phase, BoundDispatch]] = {}
        self._compiled: set[Kernel] = set()

    @property
    def gave_up(self) -> BufferSlice | None:
        """See `Executor.gave_up`; every dispatch ends."""
        return None

    def another(self, arena: Arena) -> Executor:
        """See `Executor.another`; it has no buffers."""
        del arena
        return DispatchExecutor(self.device)

    def at_once(self, prepared: Prepared) -> int:
        """See `Executor.at_once`."""
        del prepared
        return 1

    def recover(self) -> None:
        """See `Executor.recover`; there is nothing to do."""

    def settle(self) -> None:
        """See `Executor.settle`; there is nothing to wait for."""

    def prepare_whole(self, token_pass: TokenPass) -> Prepared:
        """See `Executor.prepare_whole`; the phases are launched."""
        return self.prepare(token_pass.phases)

    def prepare_behind(self, phases: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare_behind`; every pass ends."""
        return self.prepare(phases)

    def prepare(self, phases: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare`."""
        return self._bind(phases)

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """See `Executor.run`."""
        self.device.submit(prepared, rows, times)

    def _bind(self, phases: Sequence[Phase], unless: BufferSlice | None = None) -> Prepared:
        """Return the dispatches of phases, which do nothing if the word `unless` is not 0."""
        keys = [(id(phase), unless is None) for phase in phases]
        new = {
            key: (phase, as_dispatch(phase, unless))
            for key, phase in zip(keys, phases, strict=True)
            if key not in self._bound
        }
        kernels = [dispatch.kernel for _, dispatch in new.values()]
        self.device.build_ahead(kernels)  # in several threads
        if _LOG.isEnabledFor(logging.DEBUG):
            self._compile_with_progress(kernels)
        for key, (phase, dispatch) in new.items():
            self._bound[key] = (phase, self.device.bind(dispatch))
        return tuple(self._bound[key][1] for key in keys)

    def _compile_with_progress(self, kernels: Sequence[Kernel]) -> None:
        """Compile the kernels that were not compiled before, and log how far this is."""
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._compiled]
        for number, kernel in enumerate(new, start=1):
            _LOG.debug("compiling shaders (%d of %d)", number, len(new))
            self.device.pipeline(kernel)
        self._compiled.update(new)
