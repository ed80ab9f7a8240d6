"""The most probable id and the entropy of each row of logits, in 8 bytes a row.

A decoding strategy that fills many positions at once decides by these two numbers, so the logits
can stay on the device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work
from rdrr_runtime.phases.sampling.argmax import LogitsRecord

GROUPS = 32  # workgroups that share a row, and threads that merge their partial results
THREADS = 256
PICK_BYTES = 8
SCRATCH_BYTES = 16 * GROUPS  # for each row


class ArgmaxEntropy(LogitsRecord):
    """Parameters of argmax_entropy.wgsl."""

    shader = "sampling/argmax_entropy"


class ArgmaxEntropyFinish(Record):
    """Parameters of argmax_entropy_finish.wgsl, whose threads each read one partial result."""

    shader = "sampling/argmax_entropy_finish"


def argmax_entropy(
    logits: BufferSlice,
    scratch: BufferSlice,
    picks: BufferSlice,
    *,
    rows: int,
    vocabulary: int,
    label: str,
) -> list[Phase]:
    """Compute the most probable id of each row (ties go to the lower id), and its entropy in nats.

    Args:
        logits: f32 [rows, vocabulary]; -inf for masked ids.
        scratch: At least `SCRATCH_BYTES` bytes for each row.
        picks: (u32 id, f32 entropy) [rows], the result, which `unpack` reads.
        rows: Most rows of a pass.
        vocabulary: Vocabulary size.
        label: Name of the op, for messages and profiles.

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
    """Return the ids and the entropies (nats, f32 [rows]) from the bytes of `picks`."""
    words = picks.view(np.uint32).reshape(-1, 2)
    return [int(word) for word in words[:, 0]], words[:, 1].copy().view(np.float32)
