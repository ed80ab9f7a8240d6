"""The state of generation: the rows of a pass, which the GPU itself writes for the next pass.

Nothing of it comes from the host for each token: sampling leaves the next row where the next pass
reads it, so one prepared pass is replayed for each token.

    step   Step (snippets/step.wgsl): how many token rows this pass has, how many tokens have been
           sampled, of how many of the last rows a window computes the logits, and for each row
           its token, position (of rope), sequence and KV slot. A row attends to the slots of its
           sequence up to its own.
    ring   u32[n], sampled ids; the id of step s is ring[s mod n]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice

Numbers = Sequence[int] | npt.NDArray[np.int64]

HEADER_WORDS = 4
ROW_WORDS = 4


@dataclass(frozen=True)
class State:
    """The buffers that carry the state of generation from pass to pass."""

    step: BufferSlice
    ring: BufferSlice

    @staticmethod
    def create(arena: Arena, max_rows: int, ring: int = 64) -> State:
        """Return zeroed state for passes of up to `max_rows` rows, with `ring` ids in the ring."""
        words = HEADER_WORDS + ROW_WORDS * max_rows
        return State(arena.empty("step", 4 * words), arena.empty("ring", 4 * ring))


def pack_step(
    tokens: Numbers,
    slots: Numbers,
    *,
    positions: Numbers | None = None,
    sequences: Numbers | int = 0,
    wanted: int = 1,
) -> npt.NDArray[np.uint32]:
    """Return a `Step` of which no token has been sampled.

    Args:
        tokens: Token id of each row.
        slots: KV slot of each row.
        positions: Position of each row; that of its slot when None.
        sequences: Sequence of each row, or of all of them.
        wanted: Last rows whose logits a window computes.
    """
    table = np.zeros((1 + len(tokens), ROW_WORDS), np.uint32)
    table[0, 0], table[0, 2] = len(tokens), wanted
    table[1:, 0] = tokens
    table[1:, 1] = slots if positions is None else positions
    table[1:, 2] = sequences
    table[1:, 3] = slots
    return table.reshape(-1)
