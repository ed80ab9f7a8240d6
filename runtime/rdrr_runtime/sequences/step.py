"""The step that the next pass reads: tokens, positions and slots, from the host or from the GPU.

A decode pass leaves its tokens and the next positions where the next pass reads them. So a pass
that goes on from there needs nothing written; this module knows when that is so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rdrr_device.device import Device

from rdrr_runtime.backend import Row
from rdrr_runtime.phases.state import State, pack_step


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

    def write(
        self,
        ids: Sequence[int],
        base: int,
        positions: Sequence[int] | None = None,
        sequence: int = 0,
        wanted: int = 1,
    ) -> None:
        """Write ids of one sequence, which go to consecutive slots.

        Args:
            ids: Token ids.
            base: Slot of the first.
            positions: Their positions; those of the slots when None.
            sequence: Whose ids.
            wanted: Last rows whose logits a window computes.
        """
        slots = np.arange(base, base + len(ids))
        packed = pack_step(ids, slots, positions=positions, sequences=sequence, wanted=wanted)
        self._write(packed)

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Write rows of any sequences."""
        tokens, sequences, slots = zip(*rows, strict=True)
        self._write(pack_step(tokens, slots, sequences=sequences))

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

    def _write(self, packed: npt.NDArray[np.uint32]) -> None:
        """Write the step: the ring begins anew, and nothing goes on by itself."""
        self.recorded = 0
        self.invalidate()
        self._device.write(self.state.step, packed)
