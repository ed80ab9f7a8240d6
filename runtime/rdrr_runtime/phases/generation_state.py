"""The generation state on the GPU: the token rows of a pass, which sampling writes for the next.

The host writes nothing between tokens. Sampling stores the next row where the next pass reads it,
so one prepared pass can be replayed for every token. The state consists of two buffers:

    step   Step (snippets/step.wgsl): the number of token rows of this pass, the number of tokens
           sampled so far, the number n of last rows whose logits a window computes (last-n
           logits), and for each row its token id, its position (for rope), its sequence and its
           KV slot. A row attends to the slots of its sequence up to and including its own.
    ring   u32[n], a ring buffer of sampled ids; the id sampled in step s is ring[s mod n]
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

NO_SLOT = 0xFFFFFFFF
"""Slot of a row that has no effect: nothing is stored for it, and it attends to no slot."""


@dataclass(frozen=True)
class State:
    """The buffers that carry the state of generation from pass to pass."""

    step: BufferSlice
    ring: BufferSlice

    @staticmethod
    def create(arena: Arena, max_rows: int, ring: int = 64) -> State:
        """Return zeroed state for passes of up to `max_rows` rows and a ring of `ring` ids."""
        words = HEADER_WORDS + ROW_WORDS * max_rows
        return State(arena.empty("step", 4 * words), arena.empty("ring", 4 * ring))


def pack_step(
    tokens: Numbers,
    slots: Numbers,
    *,
    positions: Numbers | None = None,
    sequences: Numbers | int = 0,
    last_n: int = 1,
    launched: int = 0,
) -> npt.NDArray[np.uint32]:
    """Return the words of a `Step` before its first sampled token, u32 [4 + 4 rows].

    Args:
        tokens: Token id of each row.
        slots: KV slot of each row (the slot mapping).
        positions: Position of each row; None means that it equals the slot.
        sequences: Sequence of each row, or one sequence for all rows.
        last_n: Number of last rows whose logits a window computes.
        launched: Number of rows that the pass is launched for, if it is more than there are; the
            further rows have no effect.
    """
    count = len(tokens)
    table = np.zeros((1 + max(count, launched), ROW_WORDS), np.uint32)
    table[0, 0], table[0, 2] = count, last_n
    rows = table[1 : 1 + count]
    rows[:, 0] = tokens
    rows[:, 1] = slots if positions is None else positions
    rows[:, 2] = sequences
    rows[:, 3] = slots
    table[1 + count :, 3] = NO_SLOT
    return table.reshape(-1)
