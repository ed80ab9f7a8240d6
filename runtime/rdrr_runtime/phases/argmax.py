"""Greedy sampling on the GPU: the id of the largest logit, ties to the lower id."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.choose_best import choose_best
from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work

GROUPS = 64
THREADS = 256
SCRATCH_BYTES = 8 * GROUPS


@dataclass(frozen=True, kw_only=True)
class Argmax(Record):
    """Parameters of argmax.wgsl.

    Attributes:
        width: Logits.
        groups: Workgroups that share them.
    """

    shader = "argmax"

    width: int
    groups: int


def argmax(
    ctx: OpContext, logits: BufferSlice, scratch: BufferSlice, *, vocabulary: int, label: str
) -> list[Phase]:
    """Choose the next token and advance the step, as `choose_best` does.

    Args:
        ctx: Where it is lowered to.
        logits: f32 [vocabulary].
        scratch: At least `SCRATCH_BYTES` bytes.
        vocabulary: Logits.
        label: What the op is.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: logits", logits, vocabulary)
    need_floats(f"{label}: scratch", scratch, SCRATCH_BYTES // 4)
    scan = Argmax(threads=THREADS, width=vocabulary, groups=GROUPS)
    return [
        Phase(scan, {"logits": logits, "best": scratch}, Work(GROUPS), label),
        *choose_best(ctx, scratch, GROUPS, label=f"{label}.finish"),
    ]
