"""The executor of whole decode passes in one dispatch each; all other phases are dispatches.

The workgroups of such a pass wait for each other, and a wait may run out. From then on the executor
launches phase by phase. Phases that sample are launched behind the pass, since they depend on the
options of a generation and a shader for each set of them takes long to compile, and so are the
picks of several rows; behind a pass that gave up they do nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_format.errors import RdrrError

from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.exec.executor import DispatchExecutor, Prepared, TokenPass
from rdrr_runtime.exec.persistent.declarations import UnlinkableError
from rdrr_runtime.exec.persistent.linking import ITEMS, WAITS
from rdrr_runtime.exec.persistent.modules import Modules
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

GATE_BYTES = 16
FAILED_OFFSET = 8


@dataclass
class _Whole:
    """A pass in one dispatch, with the phases that replace it after it has given up.

    Attributes:
        prepared: The pass in one dispatch, kept because it is known by its id.
        token_pass: The same pass, which is launched phase by phase instead.
        launched: Its phases, ready to run, once they are needed.
    """

    prepared: Prepared
    token_pass: TokenPass
    launched: Prepared | None = None


class PersistentExecutor(DispatchExecutor):
    """An executor of passes in one dispatch; see the module docstring.

    Args:
        device: The device.
        arena: Owner of the buffers that the passes share.
        grid: The workgroups.
        polls: Looks at the other workgroups before a workgroup gives up.
    """

    def __init__(self, device: Device, arena: Arena, grid: Grid, polls: int = POLLS) -> None:
        super().__init__(device)
        self.grid = grid
        self._polls = polls
        self._gate = arena.empty("gate", GATE_BYTES)
        self._whole: dict[int, _Whole] = {}
        # The pass as dispatches is kept as well, because it is known by its id.
        self._on_grid: dict[int, tuple[Pass, Pass]] = {}
        self._refusals: dict[int, str | None] = {}
        self._modules = Modules(device, arena, grid, self._gate)
        self._one_dispatch = True

    @property
    def gave_up(self) -> BufferSlice | None:
        """See `Executor.gave_up`."""
        return self._failed if self._one_dispatch else None

    def another(self, arena: Arena) -> PersistentExecutor:
        """See `Executor.another`."""
        return PersistentExecutor(self.device, arena, self.grid, self._polls)

    def at_once(self, prepared: Prepared) -> int:
        """See `Executor.at_once`."""
        return PASSES_AT_ONCE if self._one_dispatch and id(prepared) in self._whole else 1

    def on_grid(self, token_pass: TokenPass) -> Pass:
        """Return a pass lowered for the workgroups of the executor, once.

        Raises:
            FormatError: It cannot be lowered for them.
        """
        key = id(token_pass.lowered)
        if key not in self._on_grid:
            self._on_grid[key] = (token_pass.lowered, token_pass.lower(self.grid))
        return self._on_grid[key][1]

    def prepare_whole(self, token_pass: TokenPass) -> Prepared:
        """See `Executor.prepare_whole`."""
        refused = self.refusal(token_pass) if self._one_dispatch else "a pass gave up before"
        if refused is not None:
            _LOG.debug("a pass is launched phase by phase: %s", refused)
            return self.prepare(token_pass.phases)
        whole = self.on_grid(token_pass)
        omitted = () if token_pass.sampling is None else whole.sample
        prepared = self.prepare_without(whole, omitted)
        if token_pass.behind:
            prepared = (*prepared, *self.prepare_behind(token_pass.behind))
        self._whole[id(prepared)] = _Whole(prepared, token_pass)
        return prepared

    def prepare_behind(self, phases: Sequence[Phase]) -> Prepared:
        """See `Executor.prepare_behind`."""
        return self._bind(phases, unless=self._failed)

    def run(self, prepared: Prepared, rows: int, times: int = 1) -> None:
        """See `Executor.run`."""
        whole = self._whole.get(id(prepared))
        if whole is not None and not self._one_dispatch:
            if whole.launched is None:
                whole.launched = self.prepare(whole.token_pass.phases)
            prepared = whole.launched
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

    def begin_build(self, token_pass: TokenPass) -> None:
        """Begin to link and compile a pass in other threads, for `is_built` to ask about.

        Raises:
            FormatError: It cannot be lowered for the workgroups of the executor.
        """
        self._modules.begin(self.on_grid(token_pass))

    def is_built(self, token_pass: TokenPass) -> bool:
        """Return whether a pass of `begin_build` is compiled, or cannot be linked."""
        return self._modules.is_built(self.on_grid(token_pass))

    def finish_build(self, token_pass: TokenPass) -> None:
        """Wait until a pass of `begin_build` is compiled, or cannot be linked."""
        self._modules.finish(self.on_grid(token_pass))

    def refusal(self, token_pass: TokenPass) -> str | None:
        """Return why a pass cannot run in one dispatch; None if a trial has shown that it can.

        The trial runs the kernel of the pass without its work: all its workgroups must meet at each
        wait, with the registers and the workgroup memory that the work takes.
        """
        key = id(token_pass.lowered)
        if key not in self._refusals:
            self._refusals[key] = self._try(token_pass)
        return self._refusals[key]

    def _try(self, token_pass: TokenPass) -> str | None:
        try:
            whole = self.on_grid(token_pass)
            module = self._modules.get(whole)
            table = module.linked.table.copy()
            table[:, ITEMS], table[:, WAITS] = 0, 1
            idle = self._modules.bind(module, table)
            self._open_gate(TRIAL_POLLS)
            super().run((idle,), 1)
        except (UnlinkableError, RdrrError) as error:
            return str(error)
        failed = self.has_given_up()
        self._open_gate(self._polls)
        if failed:
            return f"its {self.grid.groups} workgroups are not resident on the device together"
        return None

    def has_given_up(self) -> bool:
        """Wait for the passes submitted so far, and return whether one of them gave up."""
        return bool(self.device.read(self._gate, FAILED_OFFSET, 4).view(np.uint32)[0])

    def prepare_without(self, whole: Pass, omitted: Collection[Phase]) -> Prepared:
        """Return a pass in one dispatch that does not compute some of its phases.

        It still waits for what they would read, and hands over what they would write, so that the
        time of the rest shows theirs: a shader has no clock.

        Raises:
            UnlinkableError: The phases cannot run in one dispatch.
            DeviceError: The device does not support the shader, or cannot bind a buffer.
        """
        module = self._modules.get(whole)
        left_out = {id(phase) for phase in omitted}
        rows = [id(phase) in left_out for phase in whole.linkable]
        table = module.linked.table.copy()
        table[rows] = module.linked.omitted[rows]
        return (self._modules.bind(module, table),)

    @property
    def _failed(self) -> BufferSlice:
        """The word of the gate that says whether a pass gave up."""
        return self._gate.range(FAILED_OFFSET, 4)

    def _open_gate(self, polls: int) -> None:
        """Prepare the gate for the next pass; a workgroup gives up after `polls` looks."""
        self.device.write(self._gate, np.array([0, 0, 0, polls], np.uint32))
