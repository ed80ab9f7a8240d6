"""Log-probabilities of the token just sampled and of the most probable tokens, in two phases.

The record of a token has 2 + 2 `top` words: log(sum(exp(logits))), the logit of the sampled token,
then the logit and id of each of the `top` most probable tokens. `unpack` decodes records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.sampling.argmax import LogitsRecord
from rdrr_runtime.sampling.logprobs import MAX_TOP, TokenLogprobs

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


def record_bytes(top: int) -> int:
    """Return the bytes of the record of a token."""
    return 8 + 8 * top


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


def unpack(
    ids: Sequence[int], records: npt.NDArray[np.uint8], *, vocabulary: int, top: int
) -> list[TokenLogprobs]:
    """Decode the records of sampled ids.

    Args:
        ids: Sampled ids, in the order of the records.
        records: Bytes of the records, one for each id.
        vocabulary: Vocabulary size; if it is less than `top`, the surplus entries are dropped.
        top: Number of most probable tokens in a record.
    """
    words = records.view(np.uint32).reshape(len(ids), 2 + 2 * top)
    numbers = words.view(np.float32).astype(np.float64)
    return [
        TokenLogprobs(
            token_id,
            float(values[1] - values[0]),
            tuple(
                (int(bits[at + 1]), float(values[at] - values[0]))
                for at in range(2, 2 + 2 * top, 2)
                if bits[at + 1] < vocabulary
            ),
        )
        for token_id, bits, values in zip(ids, words, numbers, strict=True)
    ]
