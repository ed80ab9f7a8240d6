"""Hashes of shards, by name, as one table.

A row says how a running hash is made; another algorithm is another row. Hashes are written in
lower-case hexadecimal without a prefix. What the public runtime calls blake3 is another function:
see `rdrr_format.doppler_blake3`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from rdrr_format.errors import FormatError

# Bytes hashed in one call; reading a memory map piecewise keeps few of its pages resident.
_PIECE = 1 << 22


class Hasher(Protocol):
    """A running hash, as in hashlib."""

    def update(self, data: Any, /) -> object:
        """Take more bytes."""
        ...

    def hexdigest(self) -> str:
        """The hash so far, in hexadecimal."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """A way of hashing.

    Attributes:
        name: What `hashAlgorithm` says.
        hex_digits: Length of a written hash.
        start: Makes a running hash.
    """

    name: str
    hex_digits: int
    start: Callable[[], Hasher]


def _blake3() -> Hasher:
    from blake3 import blake3

    return blake3()


_TABLE = (Algorithm("sha256", 64, hashlib.sha256), Algorithm("blake3", 64, _blake3))

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({row.name: row for row in _TABLE})


def new_hasher(algorithm: str) -> Hasher:
    """A running hash of a named algorithm.

    Raises:
        FormatError: The algorithm is not in the table.
    """
    found = ALGORITHMS.get(algorithm)
    if found is None:
        raise FormatError(
            "unknown hash algorithm", expected=" or ".join(ALGORITHMS), found=algorithm
        )
    return found.start()


def hash_bytes(algorithm: str, data: Any) -> str:
    """The hash of bytes (anything with the buffer interface).

    Raises:
        FormatError: The algorithm is not in the table.
    """
    running = new_hasher(algorithm)
    view = memoryview(data).cast("B")
    for first in range(0, view.nbytes, _PIECE):
        running.update(view[first : first + _PIECE])
    return running.hexdigest()
