"""For each row of logits, the most probable id and the entropy of their distribution, in 8 bytes.

A strategy that fills many positions at once decides by these; the logits stay on the device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.argmax import LogitsRecord
from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work

GROUPS = 32  # workgroups that share a row, and threads that join their partial results
THREADS = 256
PICK_BYTES = 8
SCRATCH_BYTES = 16 * GROUPS  # of a row


class ArgmaxEntropy(LogitsRecord):
    """Parameters of argmax_entropy.wgsl."""

    shader = "argmax_entropy"


class ArgmaxEntropyFinish(Record):
    """Parameters of argmax_entropy_finish.wgsl: a thread for each partial result of a row."""

    shader = "argmax_entropy_finish"


def argmax_entropy(
    logits: BufferSlice,
    scratch: BufferSlice,
    picks: BufferSlice,
    *,
    rows: int,
    vocabulary: int,
    label: str,
) -> list[Phase]:
    """Compute the most probable id (ties to the lower one) and the entropy in nats of each row.

    Args:
        logits: f32 [rows, vocabulary]; -inf for ids that are not allowed.
        scratch: At least `SCRATCH_BYTES` bytes a row.
        picks: At least `PICK_BYTES` bytes a row; `unpack` reads them.
        rows: Most rows.
        vocabulary: Logits in a row.
        label: What the op is.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: logits", logits, rows * vocabulary)
    need_floats(f"{label}: scratch", scratch, rows * SCRATCH_BYTES // 4)
    need_floats(f"{label}: picks", picks, rows * PICK_BYTES // 4)
    scan = ArgmaxEntropy(threads=THREADS, width=vocabulary, groups=GROUPS)
    finish = ArgmaxEntropyFinish(threads=GROUPS)
    partials = {"partials": scratch}
    return [
        Phase(scan, {"logits": logits, **partials}, Work(GROUPS, 1), label),
        Phase(finish, {**partials, "picks": picks}, Work(1, 1), f"{label}.finish"),
    ]


def unpack(picks: npt.NDArray[np.uint8]) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Return ids and entropies of the picks of some rows."""
    words = picks.view(np.uint32).reshape(-1, 2)
    return [int(one) for one in words[:, 0]], words[:, 1].copy().view(np.float32)
