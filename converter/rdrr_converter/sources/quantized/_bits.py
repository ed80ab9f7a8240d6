"""Unpack small integers from 32-bit words: the lowest bits hold the first value, without gaps.

If the width does not divide 32, as with the 3-bit values of GPTQ, a value can span two words.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

WIDTHS = (2, 3, 4, 8)
"""Supported widths in bits."""


def word_span(begin: int, end: int, bits: int) -> tuple[slice, int]:
    """Return the words that hold values `begin` to `end`, and the index of the first value in them.

    No value crosses the limits of the slice, so that it can be unpacked on its own.
    """
    shared = gcd(bits, 32)
    values, words = 32 // shared, bits // shared
    first, last = begin // values, -(-end // values)
    return slice(first * words, last * words), first * values


def unpack(words: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """Unpack all values of some words.

    Args:
        words: 32-bit integers [rows, words], a slice from `word_span`.
        bits: Width of a value, one of `WIDTHS`.

    Returns:
        uint8 [rows, 32 * words / bits].
    """
    words = np.ascontiguousarray(words).view("<u4")
    rows, mask = words.shape[0], (1 << bits) - 1
    shape = (rows, 32 * words.shape[1] // bits)
    if 8 % bits == 0:
        octets = words.view(np.uint8)
        values = np.empty(shape, np.uint8)
        for index, shift in enumerate(range(0, 8, bits)):
            np.right_shift(octets, np.uint8(shift), out=values[:, index :: 8 // bits])
        values &= np.uint8(mask)
        return values
    word, bit = np.divmod(np.arange(0, 32 * bits, bits), 32)
    groups = words.reshape(rows, words.shape[1] // bits, bits).astype(np.uint64)
    following = groups[..., np.minimum(word + 1, bits - 1)] << np.uint64(32)
    shifted = (groups[..., word] | following) >> bit.astype(np.uint64)
    return (shifted & np.uint64(mask)).astype(np.uint8).reshape(shape)
