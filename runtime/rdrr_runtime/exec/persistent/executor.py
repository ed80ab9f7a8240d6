"""The executor of whole decode passes in one dispatch each; all other phases are dispatches.

The workgroups of such a pass wait for each other, and a wait may run out. From then on the executor
launches phase by phase.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import sleep

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.shaders import storage_bindings, with_binding_numbers
from rdrr_format.errors import DeviceError

from rdrr_runtime.exec.executor import DispatchExecutor, Prepared
from rdrr_runtime.exec.persistent.declarations import UnlinkableError
from rdrr_runtime.exec.persistent.handover import BINDINGS, EMPTY, HEAD_WORDS
from rdrr_runtime.exec.persistent.linking import ITEMS, WAITS, Linked, link
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.phase import Phase

_LOG = logging.getLogger(__name__)

POLLS = 1 << 20
"""Looks at the other workgroups before a workgroup gives up: about half a second on an H200."""

TRIAL_POLLS = 1 << 14
"""The same for a trial without work, in which the workgroups arrive within microseconds."""

PASSES_AT_ONCE = 4
"""Passes of one dispatch that are submitted where one pass of many dispatches would be: recording
them takes the host no time to speak of, and each submission costs the GPU 16 us."""

BUILD_POLL_SECONDS = 0.01

GATE_BYTES = 16
FAILED_OFFSET = 8

OWN_BUFFERS = 5
"""Bindings of a pass beside those of its phases: table, gate, and the words in three widths."""


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


@dataclass(frozen=True)
class _Module:
    """A list of phases as one kernel, and its memory.

    Attributes:
        phases: The phases, kept because Python could otherwise reuse their ids for others.
        linked: The kernel.
        words: The words of the values that phases hand over.
    """

    phases: tuple[Phase, ...]
    linked: Linked
    words: BufferSlice


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
        self._modules: dict[tuple[int, ...], _Module] = {}
        self._linking: dict[tuple[int, ...], Future[Linked]] = {}
        self._one_dispatch = True

    @property
    def at_once(self) -> int:
        """See `Executor.at_once`."""
        return PASSES_AT_ONCE if self._one_dispatch else 1

    @property
    def gave_up(self) -> BufferSlice | None:
        """See `Executor.gave_up`."""
        return self._gate.range(FAILED_OFFSET, 4) if self._one_dispatch else None

    def prepare_whole(self, whole: Sequence[Phase], parts: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare_whole`."""
        if not self._one_dispatch or not whole:
            return self.prepare(parts)
        try:
            module = self._module(whole)
        except UnlinkableError as error:
            _LOG.debug("a pass of %d phases is launched phase by phase: %s", len(parts), error)
            return self.prepare(parts)
        prepared = self._bind(module, module.linked.table)
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

    def begin_build(self, phases: Sequence[Phase]) -> None:
        """Begin to link and compile phases in other threads, for `is_built` to ask about."""
        pool = ThreadPoolExecutor(1, "link")
        self._linking[_key(phases)] = pool.submit(self._link_or_refuse, phases)
        pool.shutdown(wait=False)  # its thread ends when the phases are linked

    def is_built(self, phases: Sequence[Phase]) -> bool:
        """Return whether phases of `begin_build` are compiled, or cannot be linked."""
        linking = self._linking[_key(phases)]
        if not linking.done():
            return False
        if linking.exception() is not None:
            return True
        kernel = self._kernel(self._module(phases))
        self.device.build_ahead((kernel,))
        return self.device.is_built(kernel)

    def finish_build(self, phases: Sequence[Phase]) -> None:
        """Wait until phases of `begin_build` are compiled, or cannot be linked."""
        wait((self._linking[_key(phases)],))
        while not self.is_built(phases):
            sleep(BUILD_POLL_SECONDS)

    def refusal(self, phases: Sequence[Phase]) -> str | None:
        """Return why phases cannot run in one dispatch; None if a trial has shown that they can.

        The trial runs the kernel of these phases without their work: all its workgroups must meet
        at each wait, with the registers and the workgroup memory that the work takes.
        """
        try:
            module = self._module(phases)
            table = module.linked.table.copy()
            table[:, ITEMS], table[:, WAITS] = 0, 1
            idle = self._bind(module, table)
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

        It still waits for what they would read, and hands over what they would write, so that the
        time of the rest shows theirs: a shader has no clock.

        Raises:
            UnlinkableError: The phases cannot run in one dispatch.
            DeviceError: The device does not support the shader, or cannot bind a buffer.
        """
        module = self._module(whole)
        left_out = {id(one) for one in omitted}
        rows = [id(one) in left_out for one in whole]
        table = module.linked.table.copy()
        table[rows] = module.linked.omitted[rows]
        return self._bind(module, table)

    def _open_gate(self, polls: int) -> None:
        """Prepare the gate for the next pass; a workgroup gives up after `polls` looks."""
        self.device.write(self._gate, np.array([0, 0, 0, polls], np.uint32))

    def _module(self, phases: Sequence[Phase]) -> _Module:
        """Return phases as one kernel; the same phases are linked once."""
        key = _key(phases)
        if key not in self._modules:
            linking = self._linking.get(key)
            linked = self._link(phases) if linking is None else linking.result()
            empty = np.full(HEAD_WORDS + 2 * linked.words, EMPTY, np.uint32)
            empty[:HEAD_WORDS] = 0
            words = self._arena.upload("words", empty)
            self._modules[key] = _Module(tuple(phases), linked, words)
        return self._modules[key]

    def _link(self, phases: Sequence[Phase]) -> Linked:
        linked = link(phases, threads=self.grid.threads)
        most = self.device.limits["max-compute-workgroup-storage-size"]
        if linked.workgroup_bytes > most:
            needed = linked.workgroup_bytes
            raise UnlinkableError(f"the pass needs {needed} bytes of workgroup memory of {most}")
        bindings = len(linked.buffers) + OWN_BUFFERS
        if bindings > self.device.limits["max-storage-buffers-per-shader-stage"]:
            raise UnlinkableError(f"the pass binds {bindings} buffers")
        return linked

    def _link_or_refuse(self, phases: Sequence[Phase]) -> Linked:
        """Link phases; a fault of this package is a refusal too, as the model runs without it."""
        try:
            return self._link(phases)
        except UnlinkableError:
            raise
        except Exception as error:
            _LOG.warning("a pass could not be linked, so it is launched in parts", exc_info=True)
            raise UnlinkableError(f"linking failed: {error!r}") from error

    def _bind(self, module: _Module, table: npt.NDArray[np.uint32]) -> Prepared:
        """Return a pass in one dispatch that makes the calls of a table."""
        buffers = {
            **module.linked.buffers,
            "table": self._arena.upload("calls", np.ascontiguousarray(table)),
            "gate": self._gate,
            **dict.fromkeys(BINDINGS, module.words),
        }
        kernel = self._kernel(module)
        slices = tuple(buffers[one.name] for one in kernel.bindings)
        return (self.device.bind(Dispatch(kernel, slices, Work(self.grid.groups), "whole pass")),)

    @staticmethod
    def _kernel(module: _Module) -> Kernel:
        source = module.linked.source
        bindings, numbered = storage_bindings(source), with_binding_numbers(source)
        return Kernel("persistent", numbered, "main", (), bindings, trusted=True)


def _key(phases: Sequence[Phase]) -> tuple[int, ...]:
    return tuple(map(id, phases))
