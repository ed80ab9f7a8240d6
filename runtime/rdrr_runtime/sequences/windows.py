"""Passes over several tokens of a text at once on the GPU, at positions of their own.

For strategies that guess tokens ahead: each weight is read once for up to 32 rows, and
only the head of the rows that are asked about is computed. More rows are run in several passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rdrr_device.device import Device

from rdrr_runtime.compile.pass_spec import SMALL_WINDOW, WINDOW
from rdrr_runtime.exec.program import Pass, Program, write_step
from rdrr_runtime.phases.argmax_entropy import PICK_BYTES, unpack
from rdrr_runtime.phases.context import State

F32 = npt.NDArray[np.float32]


class GpuWindows:
    """The passes `SMALL_WINDOW` and `WINDOW` of a program.

    Args:
        device: Where it runs.
        state: What its passes read.
        program: The passes.
        vocab: Logits of a row.
    """

    def __init__(self, device: Device, state: State, program: Program, vocab: int) -> None:
        self._device = device
        self._state = state
        self._program = program
        self._vocab = vocab

    def logits(
        self, ids: Sequence[int], base: int, wanted: int, positions: Sequence[int] | None
    ) -> F32:
        """Logits of the last `wanted` rows, see `Backend.window_logits`."""
        parts = [np.empty((0, self._vocab), np.float32)]
        for which, rows in self._passes(ids, base, wanted, positions):
            self._device.submit(which.head, rows)
            data = self._device.read(which.logits, 0, 4 * rows * self._vocab)
            parts.append(data.view(np.float32).reshape(rows, self._vocab))
        return np.concatenate(parts)

    def picks(
        self, ids: Sequence[int], base: int, wanted: int, positions: Sequence[int] | None
    ) -> tuple[list[int], F32]:
        """Their likeliest ids and entropies, see `Backend.window_picks`."""
        found: list[int] = []
        entropies = [np.empty(0, np.float32)]
        for which, rows in self._passes(ids, base, wanted, positions):
            assert which.picks is not None, "passes over a tail have picks"
            self._device.submit(which.to_picks, rows)
            some, entropy = unpack(self._device.read(which.picks, 0, PICK_BYTES * rows))
            found += some
            entropies.append(entropy)
        return found, np.concatenate(entropies)

    def _passes(
        self, ids: Sequence[int], base: int, wanted: int, positions: Sequence[int] | None
    ) -> Iterator[tuple[Pass, int]]:
        """Run the bodies in order; a pass and its wanted rows, where it has any."""
        which = self._program.get(SMALL_WINDOW if len(ids) <= SMALL_WINDOW.rows else WINDOW)
        for start in range(0, len(ids), which.rows):
            part = ids[start : start + which.rows]
            end = start + len(part)
            places = None if positions is None else positions[start:end]
            write_step(self._device, self._state, part, base + start, places)
            self._device.submit(which.body, len(part))
            rows = min(len(part), end - (len(ids) - wanted))
            if rows > 0:
                yield which, rows
