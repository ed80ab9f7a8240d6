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
) -> npt.NDArray[np.uint32]:
    """Return the words of a `Step` before its first sampled token, u32 [4 + 4 rows].

    Args:
        tokens: Token id of each row.
        slots: KV slot of each row (the slot mapping).
        positions: Position of each row; None means that it equals the slot.
        sequences: Sequence of each row, or one sequence for all rows.
        last_n: Number of last rows whose logits a window computes.
    """
    table = np.zeros((1 + len(tokens), ROW_WORDS), np.uint32)
    table[0, 0], table[0, 2] = len(tokens), last_n
    table[1:, 0] = tokens
    table[1:, 1] = slots if positions is None else positions
    table[1:, 2] = sequences
    table[1:, 3] = slots
    return table.reshape(-1)
