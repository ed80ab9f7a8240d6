"""The step that the next pass reads: tokens, positions and slots, from the host or from the GPU.

A decode pass leaves its tokens and the next positions where the next pass reads them. So a pass
that goes on from there needs nothing written; this module knows when that is so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rdrr_device.device import Device
from rdrr_format.errors import FormatError

from rdrr_runtime.backend import Row
from rdrr_runtime.exec.program import write_step
from rdrr_runtime.phases.context import State


class Step:
    """The step of a model's passes, and what the GPU itself will do next.

    Args:
        device: Where the passes run.
        state: The buffers of the step.

    Attributes:
        state: The buffers of the step.
        recorded: Steps whose token ids went into the ring since the host last wrote the step.
    """

    def __init__(self, device: Device, state: State) -> None:
        self.state = state
        self.recorded = 0
        self._device = device
        self._next: tuple[Row, ...] | None = None

    def write(self, ids: Sequence[int], base: int, positions: Sequence[int] | None = None) -> None:
        """Write ids of one sequence, which go to consecutive slots.

        Args:
            ids: Token ids.
            base: Slot of the first.
            positions: Their positions; those of the slots when None.
        """
        self._restart()
        write_step(self._device, self.state, ids, base, positions)

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Write rows of any sequences.

        Raises:
            FormatError: The step has no slot mapping.
        """
        mapping = self.state.slot_mapping
        if mapping is None:
            raise FormatError("the step has no slot mapping", expected="a step of a batch")
        self._restart()
        table = np.array(rows, np.uint32)  # token, sequence, slot
        self._device.write(self.state.step, np.array([len(rows), 0, 0, 0], np.uint32))
        self._device.write(self.state.tokens, table[:, 0].copy())
        self._device.write(self.state.positions, table[:, 2].copy())
        self._device.write(mapping, table[:, 1:].copy())

    def invalidate(self) -> None:
        """Forget what the GPU will do next.

        Another pass has run since, or token ids have not been read back yet.
        """
        self._next = None

    def advance(self, rows: Sequence[Row]) -> None:
        """Note that the GPU has put these rows where the next pass reads them."""
        self._next = tuple(rows)

    def resume(self, rows: Sequence[Row]) -> bool:
        """Return whether a pass over these rows needs nothing written; invalidates the step."""
        resumes = self._next is not None and self._next == tuple(rows)
        self.invalidate()
        return resumes

    def _restart(self) -> None:
        """The host writes the step: the ring begins anew, and nothing goes on by itself."""
        self.recorded = 0
        self.invalidate()
