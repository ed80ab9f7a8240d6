"""The variant of BLAKE3 that public packages declare as blake3, in NumPy.

It is only used to verify such packages and never written; real BLAKE3 is in
`rdrr_format.integrity`. The function follows section 2 of the BLAKE3 paper with two differences.
Counter, length and flags are XORed with the last four words of the initial value, where BLAKE3
replaces those words. And the root outputs the lower half of its state, where BLAKE3 XORs the two
halves. Many chunks of the data go through the compression function at once, one array lane each, so
that a shard takes seconds rather than hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_IV = np.array(
    [
        0x6A09E667,
        0xBB67AE85,
        0x3C6EF372,
        0xA54FF53A,
        0x510E527F,
        0x9B05688C,
        0x1F83D9AB,
        0x5BE0CD19,
    ],
    dtype=np.uint32,
)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_CHUNK, _BLOCK, _ROUNDS = 1024, 64, 7
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_BATCH = 4096
"""Chunks compressed together; few enough for their state to stay in the processor's cache."""


NAME = "DOPPLER's variant of BLAKE3"


def doppler_blake3_hex(data: Any) -> str:
    """Return the hash of an object with the buffer interface, as 64 hexadecimal digits."""
    raw = np.frombuffer(data, np.uint8)
    # The last chunk is never empty, so one of full length is the last if nothing follows.
    full = max(0, (raw.size - 1) // _CHUNK)
    last = raw[full * _CHUNK :]
    if full == 0:
        return _root(*_last_block(last, 0))
    values = [*_full_chunks(raw[: full * _CHUNK])]
    inputs, words, length, flags, counter = _last_block(last, full)
    values.append(_chain(_compress(inputs, words, counter, length, flags)))
    level = np.concatenate(values, axis=1)
    while level.shape[1] > 2:
        level = _parents(level)
    key = np.repeat(_IV[:, None], 1, axis=1)
    return _root(key, _joined(level), _BLOCK, _PARENT, np.zeros(1, np.uint64))


def _full_chunks(raw: npt.NDArray[np.uint8]) -> Iterator[Words]:
    """Yield the chaining values [8, n] of complete chunks, batch by batch."""
    for first in range(0, raw.size // _CHUNK, _BATCH):
        piece = raw[first * _CHUNK : (first + _BATCH) * _CHUNK]
        words = piece.view("<u4").reshape(-1, 16, 16)
        count = len(words)
        counter = np.arange(first, first + count, dtype=np.uint64)
        chain = np.repeat(_IV[:, None], count, axis=1)
        for block in range(16):
            flags = _CHUNK_START * (block == 0) | _CHUNK_END * (block == 15)
            message = np.ascontiguousarray(words[:, block].T)
            chain = _chain(_compress(chain, message, counter, _BLOCK, flags))
        yield chain


def _last_block(
    raw: npt.NDArray[np.uint8], index: int
) -> tuple[Words, Words, int, int, npt.NDArray[np.uint64]]:
    """Return the inputs of the compression of the last block of a chunk.

    Args:
        raw: The chunk, at most 1024 bytes.
        index: Number of the chunk in the data.

    Returns:
        Chaining value [8, 1], message words [16, 1], length in bytes, flags, and counter [1].
    """
    counter = np.array([index], dtype=np.uint64)
    chain = np.repeat(_IV[:, None], 1, axis=1)
    blocks = max(1, -(-raw.size // _BLOCK))
    for block in range(blocks):
        part = raw[block * _BLOCK : (block + 1) * _BLOCK]
        padded = np.zeros(_BLOCK, np.uint8)
        padded[: part.size] = part
        words = padded.view("<u4").astype(np.uint32).reshape(16, 1)
        flags = _CHUNK_START * (block == 0) | _CHUNK_END * (block == blocks - 1)
        if block == blocks - 1:
            break
        chain = _chain(_compress(chain, words, counter, _BLOCK, flags))
    return chain, words, part.size, flags, counter


def _parents(level: Words) -> Words:
    """Return the next level of the tree; an odd last value moves up unchanged."""
    pairs = level.shape[1] // 2
    key = np.repeat(_IV[:, None], pairs, axis=1)
    counter = np.zeros(pairs, np.uint64)
    paired = level[:, : 2 * pairs]
    above = _chain(_compress(key, _joined(paired), counter, _BLOCK, _PARENT))
    return np.concatenate([above, level[:, 2 * pairs :]], axis=1)


def _joined(level: Words) -> Words:
    """Return the message words [16, n/2] made of pairs of neighbours in [8, n]."""
    return np.concatenate([level[:, 0::2], level[:, 1::2]], axis=0)


def _root(
    chain: Words,
    words: Words,
    length: int,
    flags: int,
    counter: npt.NDArray[np.uint64],
) -> str:
    state = _compress(chain, words, np.zeros_like(counter), length, flags | _ROOT)
    return state[:8, 0].astype("<u4").tobytes().hex()


def _chain(state: Words) -> Words:
    return state[:8] ^ state[8:]


def _compress(
    chain: Words,
    words: Words,
    counter: npt.NDArray[np.uint64],
    length: int,
    flags: int,
) -> Words:
    """Return the state [16, n] after seven rounds, before its halves are XORed."""
    lanes = chain.shape[1]
    tail = np.empty((4, lanes), np.uint32)
    tail[0] = (counter & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    tail[1] = (counter >> np.uint64(32)).astype(np.uint32)
    tail[2], tail[3] = length, flags
    tail ^= _IV[4:, None]
    a, b = chain[:4].copy(), chain[4:].copy()
    c, d = np.repeat(_IV[:4, None], lanes, axis=1), tail
    for _ in range(_ROUNDS):
        _mix(a, b, c, d, words[0:8:2], words[1:8:2])
        # Turns the diagonals of the state into columns, and back below.
        b, c, d = (np.roll(rows, -shift, axis=0) for rows, shift in ((b, 1), (c, 2), (d, 3)))
        _mix(a, b, c, d, words[8:16:2], words[9:16:2])
        b, c, d = (np.roll(rows, shift, axis=0) for rows, shift in ((b, 1), (c, 2), (d, 3)))
        words = words[_PERMUTATION, :]
    return np.concatenate([a, b, c, d], axis=0)


def _mix(a: Words, b: Words, c: Words, d: Words, x: Words, y: Words) -> None:
    """Apply the quarter-round function to four columns at once, in place."""
    for message, first, second in ((x, 16, 12), (y, 8, 7)):
        a += b
        a += message
        d ^= a
        _rotate(d, first)
        c += d
        b ^= c
        _rotate(b, second)


def _rotate(value: Words, shift: int) -> None:
    low = value << np.uint32(32 - shift)
    value >>= np.uint32(shift)
    value |= low
