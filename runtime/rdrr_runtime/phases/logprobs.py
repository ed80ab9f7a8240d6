"""Log-probabilities of the token just sampled and of the most probable ones, in two phases.

A token's record is 2 + 2 `top` words: the logarithm of the sum of exp(logits), the logit of the
token sampled, then logit and id of each of the most probable ones. `unpack` reads records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.argmax import LogitsRecord
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.state import State
from rdrr_runtime.sampling.logprobs import MAX_TOP, TokenLogprobs

GROUPS = 64
THREADS = 256


@dataclass(frozen=True, kw_only=True)
class LogprobsRecord(LogitsRecord):
    """Parameters of logprobs.wgsl.

    Attributes:
        top: Most probable tokens that are recorded.
    """

    shader = "logprobs"

    top: int


@dataclass(frozen=True, kw_only=True)
class LogprobsMerge(LogprobsRecord):
    """Parameters of logprobs_merge.wgsl, those of logprobs.wgsl and one more.

    Attributes:
        ring: Steps of the ring.
    """

    shader = "logprobs_merge"

    ring: int


@dataclass(frozen=True)
class LogprobBuffers:
    """Memory for up to `MAX_TOP` most probable tokens.

    Attributes:
        partials: Largest logit and sum of each workgroup.
        top: The most probable tokens of each workgroup.
        records: One record for each step of the ring.
        ring: Steps of the ring.
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
    """Return the bytes read for a token."""
    return 8 + 8 * top


def logprobs(
    buffers: LogprobBuffers, state: State, logits: BufferSlice, *, vocabulary: int, top: int
) -> list[Phase]:
    """Write the record of the token that the phases before have sampled.

    Args:
        buffers: Where partial results and records go.
        state: Holds the token, and where it is in the ring.
        logits: f32 [vocabulary].
        vocabulary: Logits.
        top: How many of the most probable, at most `MAX_TOP`.
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
    """Return the records of these ids, in order; a vocabulary may have fewer than `top` tokens."""
    words = records.view(np.uint32).reshape(len(ids), 2 + 2 * top)
    numbers = words.view(np.float32).astype(np.float64)
    return [
        TokenLogprobs(
            token_id,
            float(own[1] - own[0]),
            tuple(
                (int(bits[at + 1]), float(own[at] - own[0]))
                for at in range(2, 2 + 2 * top, 2)
                if bits[at + 1] < vocabulary
            ),
        )
        for token_id, bits, own in zip(ids, words, numbers, strict=True)
    ]
