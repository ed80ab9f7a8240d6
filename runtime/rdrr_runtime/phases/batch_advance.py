"""The end of a decode pass over rows of several sequences: each goes on with its own pick."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import State, need_floats
from rdrr_runtime.phases.shaders import kernel

MAX_ROWS = 64


def batch_advance(
    state: State, picks: BufferSlice, *, rows: int, steps: int, label: str
) -> list[Dispatch]:
    """tokens[r] = ring[step.ring mod steps, r] = picks[r], and each row moves on by one slot.

    Args:
        state: With a slot mapping; its ring is u32[steps, rows].
        picks: (u32 id, f32 entropy) of each row.
        rows: Most rows of a pass, at most `MAX_ROWS`.
        steps: Passes that the ring holds.
        label: What the op is.

    Raises:
        FormatError: No slot mapping, too many rows, or too small a buffer.
    """
    if state.slot_mapping is None or rows > MAX_ROWS:
        raise FormatError(
            f"{label}: not a pass of a batch",
            expected=f"a slot mapping, {MAX_ROWS} rows",
            found=rows,
        )
    need_floats(f"{label}: picks", picks, 2 * rows)
    need_floats(f"{label}: ring", state.ring, steps * rows)
    buffers = {
        "picks": picks,
        "current": state.step,
        "tokens": state.tokens,
        "positions": state.positions,
        "slot_mapping": state.slot_mapping,
        "ring": state.ring,
    }
    what = kernel("batch_advance", constants={"MAX_ROWS": rows, "STEPS": steps})
    return [dispatch(what, buffers, Grid(), label)]
