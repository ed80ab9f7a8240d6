"""For each row of logits, the most probable id and the entropy of their distribution, in 8 bytes.

A strategy that fills many positions at once decides by these; the logits stay on the device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.shaders import kernel

GROUPS = 32  # workgroups that share a row, and threads that join what they found
PICK_BYTES = 8
SCRATCH_BYTES = 16 * GROUPS  # of a row


def argmax_entropy(
    logits: BufferSlice,
    scratch: BufferSlice,
    picks: BufferSlice,
    *,
    rows: int,
    vocabulary: int,
    label: str,
) -> list[Dispatch]:
    """Ids, ties to the lower one, and entropies in nats, of as many rows as are launched.

    Args:
        logits: f32 [rows, vocabulary]; -inf for what cannot come.
        scratch: At least `SCRATCH_BYTES` bytes a row.
        picks: At least `PICK_BYTES` bytes a row; `unpack` reads them.
        rows: Most rows of a launch.
        vocabulary: Logits in a row.
        label: What the op is.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: logits", logits, rows * vocabulary)
    need_floats(f"{label}: scratch", scratch, rows * SCRATCH_BYTES // 4)
    need_floats(f"{label}: picks", picks, rows * PICK_BYTES // 4)
    scan = kernel("argmax_entropy", constants={"WG": 256, "WIDTH": vocabulary})
    finish = kernel("argmax_entropy_finish", constants={"WG": GROUPS})
    return [
        dispatch(scan, {"logits": logits, "parts": scratch}, Grid(GROUPS, 1, 1, 1), label),
        dispatch(finish, {"parts": scratch, "picks": picks}, Grid(1, 1, 1, 0), f"{label}.finish"),
    ]


def unpack(picks: npt.NDArray[np.uint8]) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Ids and entropies of the bytes of some rows."""
    words = picks.view(np.uint32).reshape(-1, 2)
    return [int(one) for one in words[:, 0]], words[:, 1].copy().view(np.float32)
