"""Random numbers of sampling: a counter-based generator that the GPU computes word for word.

The number of a token is a hash of (seed, step, id), pcg4d of Jarzynski and Olano, "Hash Functions
for GPU Rendering" (2020). Nothing is carried from token to token, so the host writes nothing, and
one seed gives one sequence on the host and on the GPU; `phases/snippets/noise.wgsl` is the same.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]


def fresh_seed() -> int:
    """A seed of 64 bits for a generation that nobody needs to repeat."""
    return secrets.randbits(64)


def seed_words(seed: int) -> tuple[int, int]:
    """The two words of a seed that the hash takes; bits beyond the 64th are folded in."""
    folded = 0
    while seed:
        folded ^= seed & (2**64 - 1)
        seed >>= 64
    return folded & 0xFFFFFFFF, folded >> 32


def random_words(seed: int, step: int, ids: npt.ArrayLike) -> U32:
    """A random word for each of these ids, in the step of that number."""
    last = np.asarray(ids, np.uint32)
    low, high = seed_words(seed)
    lanes = [np.full(len(last), word & 0xFFFFFFFF, np.uint32) for word in (low, high, step)]
    lanes.append(last)
    lanes = [lane * np.uint32(1664525) + np.uint32(1013904223) for lane in lanes]
    _mix(lanes)
    lanes = [lane ^ (lane >> np.uint32(16)) for lane in lanes]
    _mix(lanes)
    return lanes[0]


def _mix(lanes: list[U32]) -> None:
    x, y, z, w = 0, 1, 2, 3
    lanes[x] += lanes[y] * lanes[w]
    lanes[y] += lanes[z] * lanes[x]
    lanes[z] += lanes[x] * lanes[y]
    lanes[w] += lanes[y] * lanes[z]


def gumbel(words: U32) -> F64:
    """Numbers of Gumbel's distribution: the token of the largest logit + noise is a softmax sample.

    Small uniform numbers, which win, keep all their 32 bits.
    """
    uniform = np.minimum((words + 0.5) * 2.0**-32, 1 - 2.0**-24)
    noise: F64 = -np.log(-np.log1p(-uniform))
    return noise
