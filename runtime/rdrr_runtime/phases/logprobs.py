"""Log-probabilities of the token just chosen and of the most probable ones, in two launches.

A token's record is 2 + 2 `top` words: the logarithm of the sum of exp(logits), the logit of the
token chosen, then logit and id of each of the most probable ones. `unpack` reads records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch

from rdrr_runtime.phases.context import State
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.sampling.logprobs import MAX_TOP, TokenLogprobs

GROUPS = 64
WG = 256


@dataclass(frozen=True)
class LogprobBuffers:
    """Memory for up to `MAX_TOP` most probable tokens.

    Attributes:
        parts: Largest logit and sum of each workgroup.
        likeliest: The most probable tokens of each workgroup.
        records: One record for each step of the ring.
        ring: Steps of the ring.
    """

    parts: BufferSlice
    likeliest: BufferSlice
    records: BufferSlice
    ring: int

    @staticmethod
    def create(arena: Arena, ring: int) -> LogprobBuffers:
        """Zeroed buffers."""
        return LogprobBuffers(
            arena.empty("logprobs.parts", 8 * GROUPS),
            arena.empty("logprobs.likeliest", 8 * GROUPS * MAX_TOP),
            arena.empty("logprobs.records", ring * record_bytes(MAX_TOP)),
            ring,
        )


def record_bytes(top: int) -> int:
    """Bytes read for a token."""
    return 8 + 8 * top


def logprobs(
    buffers: LogprobBuffers, state: State, logits: BufferSlice, *, vocabulary: int, top: int
) -> list[Dispatch]:
    """Write the record of the token that the launches before have chosen.

    Args:
        buffers: Where parts and records go.
        state: Holds the token, and where it is in the ring.
        logits: f32 [vocabulary].
        vocabulary: Logits.
        top: How many of the most probable, at most `MAX_TOP`.
    """
    sizes = {"WG": WG, "WIDTH": vocabulary, "TOP": top}
    parts = {"logits": logits, "parts": buffers.parts, "likeliest": buffers.likeliest}
    merge = kernel("logprobs_merge", constants={**sizes, "GROUPS": GROUPS, "RING": buffers.ring})
    held = {"current": state.step, "tokens": state.tokens, "records": buffers.records}
    return [
        dispatch(kernel("logprobs", constants=sizes), parts, Grid(GROUPS), "logprobs"),
        dispatch(merge, {**parts, **held}, Grid(), "logprobs.merge"),
    ]


def unpack(
    ids: Sequence[int], records: npt.NDArray[np.uint8], *, vocabulary: int, top: int
) -> list[TokenLogprobs]:
    """The records of these ids, in order; a vocabulary may have fewer than `top` tokens."""
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
