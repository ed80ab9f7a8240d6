"""Log-probabilities of the token just sampled and of the most probable tokens, in two phases.

The record of a token has 2 + 2 `top` words: log(sum(exp(logits))), the logit of the sampled token,
then the logit and id of each of the `top` most probable tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.sampling.argmax import LogitsRecord
from rdrr_runtime.sampling.logprobs import MAX_TOP, record_bytes

GROUPS = 64
THREADS = 256


@dataclass(frozen=True, kw_only=True)
class LogprobsRecord(LogitsRecord):
    """Parameters of logprobs.wgsl.

    Attributes:
        top: Number of most probable tokens to record.
    """

    shader = "sampling/logprobs"

    top: int


@dataclass(frozen=True, kw_only=True)
class LogprobsMerge(LogprobsRecord):
    """Parameters of logprobs_merge.wgsl: those of logprobs.wgsl, and the size of the ring.

    Attributes:
        ring: Records that the ring holds.
    """

    shader = "sampling/logprobs_merge"

    ring: int


@dataclass(frozen=True)
class LogprobBuffers:
    """The buffers of log-probabilities, for up to `MAX_TOP` most probable tokens.

    Attributes:
        partials: Largest logit and exp sum of each workgroup, f32 [groups, 2].
        top: Most probable tokens of each workgroup, (f32 logit, u32 id) [groups, MAX_TOP].
        records: A ring of records, one for each step.
        ring: Records that the ring holds.
    """

    partials: BufferSlice
    top: BufferSlice
    records: BufferSlice
    ring: int

    @staticmethod
    def create(arena: Arena, ring: int) -> LogprobBuffers:
        """Return zeroed buffers."""
        return LogprobBuffers(
            arena.empty("logprobs.partials", 8 * GROUPS),
            arena.empty("logprobs.top", 8 * GROUPS * MAX_TOP),
            arena.empty("logprobs.records", ring * record_bytes(MAX_TOP)),
            ring,
        )


def logprobs(
    buffers: LogprobBuffers, state: State, logits: BufferSlice, *, vocabulary: int, top: int
) -> list[Phase]:
    """Write the record of the token that the previous phases have sampled.

    Args:
        buffers: Buffers for the partial results and the records.
        state: Generation state, already advanced: it holds the token and its index in the ring.
        logits: f32 [vocabulary].
        vocabulary: Vocabulary size.
        top: Number of most probable tokens to record, at most `MAX_TOP`.
    """
    scan = LogprobsRecord(threads=THREADS, width=vocabulary, top=top, groups=GROUPS)
    merge = LogprobsMerge(
        threads=THREADS, width=vocabulary, top=top, groups=GROUPS, ring=buffers.ring
    )
    partials = {"logits": logits, "partials": buffers.partials, "top": buffers.top}
    records = {"current": state.step, "records": buffers.records}
    return [
        Phase(scan, partials, Work(GROUPS), "logprobs"),
        Phase(merge, {**partials, **records}, Work(), "logprobs.merge"),
    ]
