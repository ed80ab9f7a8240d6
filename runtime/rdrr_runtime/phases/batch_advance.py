"""The end of a decode pass over rows of several sequences: each goes on with its own pick."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work
from rdrr_runtime.phases.state import State

MAX_ROWS = 64
"""A thread for each."""


@dataclass(frozen=True, kw_only=True)
class BatchAdvance(Record):
    """Parameters of batch_advance.wgsl.

    Attributes:
        max_rows: Rows of the ring.
        steps: Passes that the ring holds.
    """

    shader = "batch_advance"

    max_rows: int
    steps: int


def batch_advance(
    state: State, picks: BufferSlice, *, rows: int, steps: int, label: str
) -> list[Phase]:
    """Make each row's pick its next token, one position and slot further on.

    ring[sampled mod steps, r] becomes picks[r], then `sampled` grows by one.

    Args:
        state: Its ring is u32 [steps, rows].
        picks: (u32 id, f32 entropy) of each row.
        rows: Most rows of a pass, at most `MAX_ROWS`.
        steps: Passes that the ring holds.
        label: What the op is.

    Raises:
        FormatError: Too many rows, or too small a buffer.
    """
    if rows > MAX_ROWS:
        raise FormatError(
            f"{label}: too many rows for a decode pass of a batch",
            expected=f"at most {MAX_ROWS}",
            found=rows,
        )
    need_floats(f"{label}: picks", picks, 2 * rows)
    need_floats(f"{label}: ring", state.ring, steps * rows)
    record = BatchAdvance(threads=MAX_ROWS, max_rows=rows, steps=steps)
    buffers = {"picks": picks, "current": state.step, "ring": state.ring}
    return [Phase(record, buffers, Work(), label)]
