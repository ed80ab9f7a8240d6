"""The executor of whole decode passes in one dispatch each; all other phases are dispatches.

The workgroups of such a pass wait for each other, and a wait may run out. From then on the executor
launches phase by phase.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.shaders import storage_bindings, with_binding_numbers
from rdrr_format.errors import DeviceError

from rdrr_runtime.exec.executor import DispatchExecutor, Prepared
from rdrr_runtime.exec.persistent.declarations import UnlinkableError
from rdrr_runtime.exec.persistent.linking import Linked, link
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.phase import Phase

_LOG = logging.getLogger(__name__)

POLLS = 1 << 20
"""Looks at the other workgroups before a workgroup gives up: about half a second on an H200."""

TRIAL_POLLS = 1 << 14
"""The same for a trial without work, in which the workgroups arrive within microseconds."""

GATE_BYTES = 16
FAILED_OFFSET = 8


@dataclass
class _Whole:
    """A pass in one dispatch, with the phases that replace it after it has given up.

    Attributes:
        prepared: The pass in one dispatch, kept because it is known by its id.
        parts: The phases that compute the same.
        launched: These phases, ready to run, once they are needed.
    """

    prepared: Prepared
    parts: tuple[Phase, ...]
    launched: Prepared | None = None


class PersistentExecutor(DispatchExecutor):
    """An executor of passes in one dispatch; see the module docstring.

    Args:
        device: The device.
        arena: Owner of the gate and of the tables of calls.
        grid: The workgroups.
        polls: Looks at the other workgroups before a workgroup gives up.
    """

    def __init__(self, device: Device, arena: Arena, grid: Grid, polls: int = POLLS) -> None:
        super().__init__(device)
        self.grid = grid
        self._arena, self._polls = arena, polls
        self._gate = arena.empty("gate", GATE_BYTES)
        self._whole: dict[int, _Whole] = {}
        # The phases are kept as well: Python could otherwise reuse their ids for other phases.
        self._links: dict[tuple[int, ...], tuple[tuple[Phase, ...], Linked]] = {}
        self._one_dispatch = True

    @property
    def gave_up(self) -> BufferSlice | None:
        """See `Executor.gave_up`."""
        return self._gate.range(FAILED_OFFSET, 4) if self._one_dispatch else None

    def prepare_whole(self, whole: Sequence[Phase], parts: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare_whole`."""
        if not self._one_dispatch:
            return self.prepare(parts)
        try:
            linked = self._linked(whole)
        except UnlinkableError as error:
            _LOG.debug("a pass of %d phases is launched phase by phase: %s", len(parts), error)
            return self.prepare(parts)
        prepared = (self.device.bind(self._dispatch(linked, linked.table)),)
        self._whole[id(prepared)] = _Whole(prepared, tuple(parts))
        return prepared

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """See `Executor.run`."""
        found = self._whole.get(id(prepared))
        if found is not None and not self._one_dispatch:
            if found.launched is None:
                found.launched = self.prepare(found.parts)
            prepared = found.launched
        super().run(prepared, rows, times)

    def recover(self) -> None:
        """See `Executor.recover`."""
        if self._one_dispatch:
            _LOG.warning(
                "workgroups of a pass gave up waiting for each other; "
                "from now on each phase is launched by itself, which may be slower"
            )
        self._one_dispatch = False
        self._open_gate(self._polls)

    def refusal(self, phases: Sequence[Phase]) -> str | None:
        """Return why phases cannot run in one dispatch; None if a trial has shown that they can.

        The trial runs the kernel of these phases without their work: all its workgroups must meet
        at each wait, with the registers and the workgroup memory that the work takes.
        """
        try:
            idle = self.prepare_without(phases, phases)
            self._open_gate(TRIAL_POLLS)
            super().run(idle, 1)
        except (UnlinkableError, DeviceError) as error:
            return str(error)
        failed = self.has_given_up()
        self._open_gate(self._polls)
        if failed:
            return f"its {self.grid.groups} workgroups are not resident on the device together"
        return None

    def has_given_up(self) -> bool:
        """Wait for the passes submitted so far, and return whether one of them gave up."""
        return bool(self.device.read(self._gate, FAILED_OFFSET, 4).view(np.uint32)[0])

    def prepare_without(self, whole: Sequence[Phase], omitted: Collection[Phase]) -> Prepared:
        """Return a pass in one dispatch that does not compute some of its phases.

        It still waits where they would wait, so that the time of the rest shows theirs: a shader
        has no clock.

        Raises:
            UnlinkableError: The phases cannot run in one dispatch.
            DeviceError: The device does not support the shader, or cannot bind a buffer.
        """
        linked = self._linked(whole)
        left_out = {id(one) for one in omitted}
        table = linked.table.copy()
        table[[id(one) in left_out for one in whole], 1] = 0
        return (self.device.bind(self._dispatch(linked, table)),)

    def _open_gate(self, polls: int) -> None:
        """Prepare the gate for the next pass; a workgroup gives up after `polls` looks."""
        self.device.write(self._gate, np.array([0, 0, 0, polls], np.uint32))

    def _linked(self, phases: Sequence[Phase]) -> Linked:
        """Return phases as one kernel; the same phases are linked once."""
        key = tuple(map(id, phases))
        if key not in self._links:
            self._links[key] = (tuple(phases), self._link(phases))
        return self._links[key][1]

    def _link(self, phases: Sequence[Phase]) -> Linked:
        linked = link(phases, threads=self.grid.threads)
        most = self.device.limits["max-compute-workgroup-storage-size"]
        if linked.workgroup_bytes > most:
            needed = linked.workgroup_bytes
            raise UnlinkableError(f"the pass needs {needed} bytes of workgroup memory of {most}")
        if len(linked.buffers) + 2 > self.device.limits["max-storage-buffers-per-shader-stage"]:
            raise UnlinkableError(f"the pass binds {len(linked.buffers) + 2} buffers")
        return linked

    def _dispatch(self, linked: Linked, table: np.ndarray) -> Dispatch:
        buffers = {
            **linked.buffers,
            "table": self._arena.upload("calls", np.ascontiguousarray(table)),
            "gate": self._gate,
        }
        bindings = storage_bindings(linked.source)
        source = with_binding_numbers(linked.source)
        kernel = Kernel("persistent", source, "main", (), bindings, trusted=True)
        slices = tuple(buffers[one.name] for one in bindings)
        return Dispatch(kernel, slices, Work(self.grid.groups), "whole pass")
