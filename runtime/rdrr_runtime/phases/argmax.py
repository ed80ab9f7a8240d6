"""Greedy sampling on the GPU, and the end of all sampling: the best candidate is the next token.

A scan leaves the best candidate of each of its items, and `choose_best` takes the best of those;
ties go to the lower id. The id becomes the next input token on the GPU, so a decoding loop writes
nothing from the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.sample_buffers import SampleBuffers
from rdrr_runtime.phases.state import State

GROUPS = 64
THREADS = 256
CHOOSE_THREADS = 64
SCRATCH_BYTES = 8 * GROUPS


@dataclass(frozen=True, kw_only=True)
class LogitsRecord(Record):
    """Parameters of phases whose workgroups share a row of logits.

    Attributes:
        width: Logits of a row, the vocabulary.
        groups: Workgroups that share a row.
    """

    width: int
    groups: int


class Argmax(LogitsRecord):
    """Parameters of argmax.wgsl."""

    shader = "argmax"


@dataclass(frozen=True, kw_only=True)
class ChooseBest(Record):
    """Parameters of choose_best.wgsl.

    Attributes:
        sampled: Whether counts and parameters of a sampler are kept up.
        advances: Whether the only row's token goes into the step, rather than into picks.
        candidates: Candidates of a row.
        ring: Ids that the ring holds, where the step advances.
        counts_stride: Words of a sequence's counts, where they are kept up.
    """

    shader = "choose_best"

    sampled: bool = choice()
    advances: bool = choice()
    candidates: int
    ring: int | None
    counts_stride: int | None


def argmax(
    state: State, logits: BufferSlice, scratch: BufferSlice, *, vocabulary: int, label: str
) -> list[Phase]:
    """Make the most probable token the next one, and advance the step.

    Args:
        state: Where the token goes.
        logits: f32 [vocabulary].
        scratch: At least `SCRATCH_BYTES` bytes.
        vocabulary: Logits.
        label: What the op is.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: logits", logits, vocabulary)
    need_floats(f"{label}: scratch", scratch, SCRATCH_BYTES // 4)
    record = Argmax(threads=THREADS, width=vocabulary, groups=GROUPS)
    scan = Phase(record, {"logits": logits, "best": scratch}, Work(GROUPS), label)
    return [scan, choose_best(state, scan, label=f"{label}.finish")]


def choose_best(
    state: State,
    scan: Phase,
    *,
    picks: BufferSlice | None = None,
    sampler: SampleBuffers | None = None,
    label: str,
) -> Phase:
    """Make the best of some candidates the next token of each row.

    Without picks the pass is of one sequence: the id goes into the ring, and the step's only row is
    then the one after the last of this pass.

    Args:
        state: Where the token goes.
        scan: The phase that leaves (f32 value, u32 id) of each of its items in `best`.
        picks: (u32, f32) [rows]: where the ids of rows of several sequences go; the second words
            are left zero.
        sampler: Whose counts and parameters are kept up, if tokens are sampled.
        label: What the op is.
    """
    record = ChooseBest(
        threads=CHOOSE_THREADS,
        variant="" if sampler is None else "sampled",
        sampled=sampler is not None,
        advances=picks is None,
        candidates=scan.work.items,
        ring=state.ring.size // 4 if picks is None else None,
        counts_stride=None if sampler is None else sampler.counts_stride,
    )
    buffers = {"best": scan.buffers["best"], "current": state.step}
    buffers |= {"ring": state.ring} if picks is None else {"picks": picks}
    if sampler is not None:
        buffers |= {"params": sampler.params, "counts": sampler.counts}
    return Phase(record, buffers, Work(1, None if picks is None else 1), label, scan.tuning_keys)
