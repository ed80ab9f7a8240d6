"""The end of a pass over a window with masks: some are filled, and the next window is written.

With it such passes need nothing from the host between them, as decode passes do not. The window and
the rule are described in `rdrr_runtime.decode.wedlm`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase, Record, Work
from rdrr_runtime.phases.sampling.argmax_entropy import PICK_BYTES
from rdrr_runtime.records import RecordTable
from rdrr_runtime.sampling.masks import FilledTokens, MaskRules

THREADS = 64
MOST_WINDOW = THREADS // 2
"""Largest window: a pass has up to twice as many rows, and the kernel has one thread for each."""

HEADER_WORDS = 2
NO_LIMIT = 0xFFFFFFFF
RULES = RecordTable({"mask_id": "u32", "most": "u32", "budget": "u32", "tau": "f32"}, 4)
"""`Rules` of the shader, whose penalties follow: one for each row."""


@dataclass(frozen=True, kw_only=True)
class FillMasks(Record):
    """Parameters of fill_masks.wgsl.

    Attributes:
        max_rows: Rows that a pass is launched for, twice the window.
        window: Positions in the window.
    """

    shader = "sampling/fill_masks"

    max_rows: int
    window: int


def fill_masks(
    state: State,
    picks: BufferSlice,
    rules: BufferSlice,
    record: BufferSlice,
    *,
    window: int,
    label: str,
) -> list[Phase]:
    """Fill masks of a window by their picks, record new tokens, and write the next step.

    Args:
        state: Generation state, whose rows are those of the window.
        picks: (u32 id, f32 entropy) of each mask.
        rules: `pack_rules`, of which the budget is reduced.
        record: u32 [2 + window], which receives what `unpack` reads.
        window: Positions in the window, at most `MOST_WINDOW`.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The window is too large, or a buffer is too small.
    """
    if window > MOST_WINDOW:
        raise FormatError(
            "the window of masks is too large for one pass",
            where=label,
            expected=f"at most {MOST_WINDOW} positions",
            found=window,
        )
    need_floats(f"{label}: picks", picks, PICK_BYTES // 4 * window)
    need_floats(f"{label}: rules", rules, rules_bytes(window) // 4)
    need_floats(f"{label}: record", record, record_bytes(window) // 4)
    fill = FillMasks(threads=THREADS, max_rows=2 * window, window=window)
    buffers = {"picks": picks, "current": state.step, "rules": rules, "record": record}
    return [Phase(fill, buffers, Work(), label)]


def rules_bytes(window: int) -> int:
    """Return the bytes of the rules of a window."""
    return 4 * (RULES.words + 2 * window)


def record_bytes(window: int) -> int:
    """Return the bytes of the record of a pass."""
    return 4 * (HEADER_WORDS + window)


def pack_rules(rules: MaskRules, budget: int) -> npt.NDArray[np.uint32]:
    """Return the words of `Rules`.

    Args:
        rules: The window and its thresholds.
        budget: Positions that may be added to the first window.
    """
    most = NO_LIMIT if rules.most is None else rules.most
    header = RULES.pack(mask_id=rules.mask_id, most=most, budget=budget, tau=rules.threshold)
    return np.concatenate([header, rules.penalties.view(np.uint32)])


def unpack(record: npt.NDArray[np.uint8]) -> FilledTokens:
    """Return what the record of a pass says."""
    words = record.view(np.uint32)
    rows, count = int(words[0]), int(words[1])
    return FilledTokens(words[HEADER_WORDS : HEADER_WORDS + count].tolist(), rows)
