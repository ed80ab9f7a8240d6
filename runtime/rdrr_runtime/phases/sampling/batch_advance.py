"""The end of a decode pass over several sequences: each sequence continues with its own pick."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase, Record, Work

MAX_ROWS = 64
"""Most rows of a pass; the kernel has one thread for each row."""


@dataclass(frozen=True, kw_only=True)
class BatchAdvance(Record):
    """Parameters of batch_advance.wgsl.

    Attributes:
        max_rows: Ids of a pass in the ring.
        steps: Passes that the ring holds.
    """

    shader = "sampling/batch_advance"

    max_rows: int
    steps: int


def batch_advance(
    state: State, picks: BufferSlice, *, rows: int, steps: int, label: str
) -> list[Phase]:
    """Make the pick of each row its next token, at the next position and slot of its sequence.

    The ids are also recorded: ring[sampled mod steps, r] = picks[r]; then `sampled` is incremented.

    Args:
        state: Generation state; its ring is u32 [steps, rows].
        picks: (u32 id, f32 entropy) of each row.
        rows: Most rows of a pass, at most `MAX_ROWS`.
        steps: Passes that the ring holds.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: There are too many rows, or a buffer is too small.
    """
    if rows > MAX_ROWS:
        raise FormatError(
            "there are too many rows for a decode pass of a batch",
            where=label,
            expected=f"at most {MAX_ROWS}",
            found=rows,
        )
    need_floats(f"{label}: picks", picks, 2 * rows)
    need_floats(f"{label}: ring", state.ring, steps * rows)
    record = BatchAdvance(threads=MAX_ROWS, max_rows=rows, steps=steps)
    buffers = {"picks": picks, "current": state.step, "ring": state.ring}
    return [Phase(record, buffers, Work(), label)]
