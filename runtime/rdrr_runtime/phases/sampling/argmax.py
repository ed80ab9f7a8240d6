"""Greedy sampling on the GPU, and the last step of every sampler: the best candidate wins.

A scan over the logits writes the best candidate (value and id) of each workgroup, and `choose_best`
selects the best of those. Ties go to the lower id. The id becomes the next input token on the GPU,
so the host writes nothing between tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import need_floats
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.sampling.sample_buffers import SampleBuffers

GROUPS = 64
THREADS = 256
CHOOSE_THREADS = 64
SCRATCH_BYTES = 8 * GROUPS


@dataclass(frozen=True, kw_only=True)
class LogitsRecord(Record):
    """Parameters of phases whose workgroups share a row of logits.

    Attributes:
        width: Logits of a row, the vocabulary size.
        groups: Workgroups that share a row.
    """

    width: int
    groups: int


class Argmax(LogitsRecord):
    """Parameters of argmax.wgsl."""

    shader = "sampling/argmax"

    @property
    def fills(self) -> bool:
        """See `Record.fills`."""
        return True


@dataclass(frozen=True, kw_only=True)
class ChooseBest(Record):
    """Parameters of choose_best.wgsl.

    Attributes:
        sampled: Whether to update the token counts and the step count of a sampler.
        advances: Whether to write the token of the only row into the step and the ring, instead of
            into `picks`.
        candidates: Candidates of a row.
        ring: Ids that the ring holds; None unless the step advances.
        counts_stride: Words from the counts of one sequence to the next; None unless `sampled`.
    """

    shader = "sampling/choose_best"

    sampled: bool = choice()
    advances: bool = choice()
    candidates: int
    ring: int | None
    counts_stride: int | None


def argmax(
    state: State,
    logits: BufferSlice,
    scratch: BufferSlice,
    *,
    vocabulary: int,
    threads: int | None = None,
    label: str,
) -> list[Phase]:
    """Select the most probable token (argmax) as the next one, and advance the step.

    Args:
        state: Generation state that receives the token.
        logits: f32 [vocabulary].
        scratch: At least `SCRATCH_BYTES` bytes.
        vocabulary: Vocabulary size.
        threads: Threads of all workgroups, a power of two; each phase's own number when None.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: logits", logits, vocabulary)
    need_floats(f"{label}: scratch", scratch, SCRATCH_BYTES // 4)
    record = Argmax(threads=threads or THREADS, width=vocabulary, groups=GROUPS)
    scan = Phase(record, {"logits": logits, "best": scratch}, Work(GROUPS), label)
    return [scan, choose_best(state, scan, threads=threads, label=f"{label}.finish")]


def choose_best(
    state: State,
    scan: Phase,
    *,
    picks: BufferSlice | None = None,
    sampler: SampleBuffers | None = None,
    threads: int | None = None,
    label: str,
) -> Phase:
    """Select the best candidate of each row as its next token.

    Without `picks` the pass belongs to one sequence: the id goes into the ring, and the only row of
    the next step follows the last row of this pass.

    Args:
        state: Generation state that receives the token.
        scan: Phase that writes (f32 value, u32 id) for each of its items to `best`.
        picks: (u32 id, f32 zero) [rows], the result for rows of several sequences; None for one
            sequence.
        sampler: Sampler whose token counts and step counts to update; None for greedy decoding.
        threads: Threads of the workgroup, a power of two; `CHOOSE_THREADS` when None.
        label: Name of the op, for messages and profiles.
    """
    record = ChooseBest(
        threads=threads or CHOOSE_THREADS,
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
