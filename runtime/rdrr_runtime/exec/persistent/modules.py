"""The kernels of passes in one dispatch: linked once, compiled beside other passes, and bound.

When such a pass runs, and what happens if it gives up, is up to the executor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import sleep

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.shaders import storage_bindings, with_binding_numbers

from rdrr_runtime.exec.persistent.declarations import UnlinkableError
from rdrr_runtime.exec.persistent.handover import BINDINGS, EMPTY, HEAD_WORDS
from rdrr_runtime.exec.persistent.limits import check_limits
from rdrr_runtime.exec.persistent.linking import Linked, link
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.phase import Phase

_LOG = logging.getLogger(__name__)

BUILD_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Module:
    """A list of phases as one kernel, and its memory.

    Attributes:
        phases: The phases, kept because Python could otherwise reuse their ids for others.
        linked: The linked shader.
        words: The words of the values that phases hand over.
    """

    phases: tuple[Phase, ...]
    linked: Linked
    words: BufferSlice

    @property
    def kernel(self) -> Kernel:
        """The kernel, with its bindings numbered."""
        source = self.linked.source
        bindings, numbered = storage_bindings(source), with_binding_numbers(source)
        return Kernel("persistent", numbered, "main", (), bindings, trusted=True)


class Modules:
    """The modules of an executor, by their phases.

    Args:
        device: The device.
        arena: Owner of the words and of the tables of calls.
        grid: The workgroups.
        gate: The buffer of gate.wgsl, which all modules share.
    """

    def __init__(self, device: Device, arena: Arena, grid: Grid, gate: BufferSlice) -> None:
        self._device, self._arena = device, arena
        self._grid, self._gate = grid, gate
        self._made: dict[tuple[int, ...], Module] = {}
        self._linking: dict[tuple[int, ...], Future[Linked]] = {}

    def get(self, phases: Sequence[Phase]) -> Module:
        """Return phases as one kernel; the same phases are linked once.

        Raises:
            UnlinkableError: They cannot be joined, or the device does not allow it.
        """
        key = _key(phases)
        if key not in self._made:
            linking = self._linking.get(key)
            linked = self._link(phases) if linking is None else linking.result()
            empty = np.full(HEAD_WORDS + 2 * linked.words, EMPTY, np.uint32)
            empty[:HEAD_WORDS] = 0
            words = self._arena.upload("words", empty)
            self._made[key] = Module(tuple(phases), linked, words)
        return self._made[key]

    def begin(self, phases: Sequence[Phase]) -> None:
        """Begin to link and compile phases in other threads, for `is_built` to ask about."""
        pool = ThreadPoolExecutor(1, "link")
        self._linking[_key(phases)] = pool.submit(self._link_or_refuse, phases)
        pool.shutdown(wait=False)  # its thread ends when the phases are linked

    def is_built(self, phases: Sequence[Phase]) -> bool:
        """Return whether phases of `begin` are compiled, or cannot be linked."""
        linking = self._linking[_key(phases)]
        if not linking.done():
            return False
        if linking.exception() is not None:
            return True
        kernel = self.get(phases).kernel
        self._device.build_ahead((kernel,))
        return self._device.is_built(kernel)

    def finish(self, phases: Sequence[Phase]) -> None:
        """Wait until phases of `begin` are compiled, or cannot be linked."""
        wait((self._linking[_key(phases)],))
        while not self.is_built(phases):
            sleep(BUILD_POLL_SECONDS)

    def bind(self, module: Module, table: npt.NDArray[np.uint32]) -> BoundDispatch:
        """Return the dispatch that makes the calls of a table, see `Linked.table`.

        Raises:
            DeviceError: The device does not support the shader, or cannot bind a buffer.
        """
        buffers = {
            **module.linked.buffers,
            "table": self._arena.upload("calls", np.ascontiguousarray(table)),
            "gate": self._gate,
            **dict.fromkeys(BINDINGS, module.words),
        }
        kernel = module.kernel
        slices = tuple(buffers[one.name] for one in kernel.bindings)
        return self._device.bind(Dispatch(kernel, slices, Work(self._grid.groups), "whole pass"))

    def _link(self, phases: Sequence[Phase]) -> Linked:
        linked = link(phases, threads=self._grid.threads)
        check_limits(linked, self._device)
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


def _key(phases: Sequence[Phase]) -> tuple[int, ...]:
    return tuple(map(id, phases))
