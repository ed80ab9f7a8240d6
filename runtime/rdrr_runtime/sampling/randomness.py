"""Random numbers for sampling: a counter-based generator with the same output on host and GPU.

The random word of a token is a hash of (seed, step, id): pcg4d of Jarzynski and Olano, "Hash
Functions for GPU Rendering" (2020). The generator has no state, so the host need not write anything
between tokens, and the same seed gives the same sequence on the host and on the GPU.
`phases/sampling/snippets/noise.wgsl` computes the same function.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]


def fresh_seed() -> int:
    """Return a random 64-bit seed, for generations that need not be reproducible."""
    return secrets.randbits(64)


def seed_words(seed: int) -> tuple[int, int]:
    """Return the low and the high 32-bit word of a seed; longer seeds are folded by XOR."""
    folded = 0
    while seed:
        folded ^= seed & (2**64 - 1)
        seed >>= 64
    return folded & 0xFFFFFFFF, folded >> 32


def random_words(seed: int, step: int, ids: npt.ArrayLike) -> U32:
    """Return a random word for each token id, uint32 [n].

    Args:
        seed: Seed of the sequence.
        step: Number of tokens sampled before in the sequence.
        ids: Token ids, [n].
    """
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
    """Map uniform words to Gumbel noise, float64 of the same shape.

    The token with the largest logit + noise is a sample of the softmax. The noise is
    -log(-log(1 - u)), so that the smallest u, which give the largest noise, keep all their 32 bits.
    """
    uniform = np.minimum((words + 0.5) * 2.0**-32, 1 - 2.0**-24)
    noise: F64 = -np.log(-np.log1p(-uniform))
    return noise
