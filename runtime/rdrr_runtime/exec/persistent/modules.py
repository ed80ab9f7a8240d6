"""The kernels of passes in one dispatch: linked once, compiled beside other passes, and bound.

When such a pass runs, and what happens if it gives up, is up to the executor.
"""

from __future__ import annotations

import logging
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

from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.exec.persistent.declarations import UnlinkableError
from rdrr_runtime.exec.persistent.handover import BINDINGS, empty_words
from rdrr_runtime.exec.persistent.limits import check_limits, check_loops, check_rows, check_waits
from rdrr_runtime.exec.persistent.linking import Linked, link
from rdrr_runtime.phases.context import Grid

_LOG = logging.getLogger(__name__)

BUILD_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Module:
    """A pass as one kernel, and its memory.

    Attributes:
        whole: The pass, kept because Python could otherwise reuse its id for another.
        linked: The linked shader.
        words: The words of the values that phases hand over.
    """

    whole: Pass
    linked: Linked
    words: BufferSlice

    @property
    def kernel(self) -> Kernel:
        """The kernel, with its bindings numbered."""
        source = self.linked.source
        bindings, numbered = storage_bindings(source), with_binding_numbers(source)
        return Kernel("persistent", numbered, "main", (), bindings, trusted=True)


class Modules:
    """The modules of an executor, one for each pass.

    Args:
        device: The device.
        arena: Owner of the words and of the tables of calls.
        grid: The workgroups.
        gate: The buffer of gate.wgsl, which all modules share.
    """

    def __init__(self, device: Device, arena: Arena, grid: Grid, gate: BufferSlice) -> None:
        self._device, self._arena = device, arena
        self._grid, self._gate = grid, gate
        self._made: dict[int, Module] = {}
        self._linking: dict[int, Future[Linked]] = {}

    def get(self, whole: Pass) -> Module:
        """Return a pass as one kernel; it is linked once.

        Raises:
            UnlinkableError: Its phases cannot be joined, or the device does not allow it, or one
                dispatch does not pay for it.
        """
        key = id(whole)
        if key not in self._made:
            linking = self._linking.get(key)
            linked = self._link(whole) if linking is None else linking.result()
            words = self._arena.upload("words", empty_words(2 * linked.words))
            self._made[key] = Module(whole, linked, words)
        return self._made[key]

    def begin(self, whole: Pass) -> None:
        """Begin to link and compile a pass in other threads, for `is_built` to ask about."""
        pool = ThreadPoolExecutor(1, "link")
        self._linking[id(whole)] = pool.submit(self._link_or_refuse, whole)
        pool.shutdown(wait=False)  # its thread ends when the pass is linked

    def is_built(self, whole: Pass) -> bool:
        """Return whether a pass of `begin` is compiled, or cannot be linked."""
        linking = self._linking[id(whole)]
        if not linking.done():
            return False
        if linking.exception() is not None:
            return True
        kernel = self.get(whole).kernel
        self._device.build_ahead((kernel,))
        return self._device.is_built(kernel)

    def finish(self, whole: Pass) -> None:
        """Wait until a pass of `begin` is compiled, or cannot be linked."""
        wait((self._linking[id(whole)],))
        while not self.is_built(whole):
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
        slices = tuple(buffers[binding.name] for binding in kernel.bindings)
        return self._device.bind(Dispatch(kernel, slices, Work(self._grid.groups), "whole pass"))

    def _link(self, whole: Pass) -> Linked:
        check_rows(whole, self._device)
        check_loops(whole.linkable, self._grid, self._device)
        # The logits are a result, since phases that sample are launched behind the pass.
        linked = link(
            whole.linkable,
            self._grid,
            rows=whole.rows,
            results=(whole.logits,),
            aliased=self._device.info.aliased_writes,
        )
        check_limits(linked, self._device)
        check_waits(whole, linked)
        return linked

    def _link_or_refuse(self, whole: Pass) -> Linked:
        """Link a pass; a fault of this package is a refusal too, as the model runs without it."""
        try:
            return self._link(whole)
        except UnlinkableError:
            raise
        except Exception as error:
            _LOG.warning("a pass could not be linked, so it is launched in parts", exc_info=True)
            raise UnlinkableError(f"linking failed: {error!r}") from error
