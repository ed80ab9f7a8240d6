"""Hashes of shards, by name, as one table.

A row says how a running hash is made; another algorithm is another row. Hashes are written in
lower-case hexadecimal without a prefix. What the public runtime calls blake3 is another function:
see `rdrr_format.doppler_blake3`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol

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


def _blake3() -> Hasher:
    from blake3 import blake3

    return blake3()


HashAlgorithm = Literal["sha256", "blake3"]
"""The keys of `ALGORITHMS`, for annotations."""

ALGORITHMS: Mapping[str, Callable[[], Hasher]] = MappingProxyType(
    {"sha256": hashlib.sha256, "blake3": _blake3}
)
"""What `hashAlgorithm` says, and what makes a running hash."""


def new_hasher(algorithm: str) -> Hasher:
    """A running hash of a named algorithm.

    Raises:
        FormatError: The algorithm is not in the table.
    """
    start = ALGORITHMS.get(algorithm)
    if start is None:
        raise FormatError(
            "unknown hash algorithm", expected=" or ".join(ALGORITHMS), found=algorithm
        )
    return start()


def hash_pieces(algorithm: str, pieces: Iterable[Any]) -> str:
    """The hash of bytes that come in pieces.

    Raises:
        FormatError: The algorithm is not in the table.
    """
    running = new_hasher(algorithm)
    for piece in pieces:
        running.update(memoryview(piece).cast("B"))
    return running.hexdigest()


def hash_bytes(algorithm: str, data: Any) -> str:
    """The hash of bytes (anything with the buffer interface).

    Raises:
        FormatError: The algorithm is not in the table.
    """
    view = memoryview(data).cast("B")
    return hash_pieces(
        algorithm, (view[first : first + _PIECE] for first in range(0, view.nbytes, _PIECE))
    )
