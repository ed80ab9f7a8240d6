"""Hash algorithms of shards, in one table from name to constructor.

Hashes are written in lower-case hexadecimal without a prefix. The function that the public runtime
calls blake3 is not BLAKE3 and is not in the table: see `rdrr_format.doppler_blake3`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol

from rdrr_format.errors import FormatError

# Bytes hashed per call; reading a memory map in chunks keeps few of its pages resident.
_CHUNK_BYTES = 1 << 22


class Hasher(Protocol):
    """A running hash, as in hashlib."""

    def update(self, data: Any, /) -> object:
        """Add bytes to the hash."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far, in hexadecimal."""


def _blake3() -> Hasher:
    from blake3 import blake3

    return blake3()


HashAlgorithm = Literal["sha256", "blake3"]
"""The keys of `ALGORITHMS`, for annotations."""

ALGORITHMS: Mapping[str, Callable[[], Hasher]] = MappingProxyType(
    {"sha256": hashlib.sha256, "blake3": _blake3}
)
"""Constructors by the value of the manifest field `hashAlgorithm`."""


def new_hasher(algorithm: str) -> Hasher:
    """Return a new running hash of a named algorithm.

    Raises:
        FormatError: The algorithm is not in the table.
    """
    start = ALGORITHMS.get(algorithm)
    if start is None:
        raise FormatError(
            "unknown hash algorithm", expected=" or ".join(ALGORITHMS), found=algorithm
        )
    return start()


def hash_chunks(algorithm: str, chunks: Iterable[Any]) -> str:
    """Return the hash of consecutive chunks of bytes.

    Raises:
        FormatError: The algorithm is not in the table.
    """
    running = new_hasher(algorithm)
    for chunk in chunks:
        running.update(memoryview(chunk).cast("B"))
    return running.hexdigest()


def hash_bytes(algorithm: str, data: Any) -> str:
    """Return the hash of an object with the buffer interface.

    Raises:
        FormatError: The algorithm is not in the table.
    """
    view = memoryview(data).cast("B")
    starts = range(0, view.nbytes, _CHUNK_BYTES)
    return hash_chunks(algorithm, (view[first : first + _CHUNK_BYTES] for first in starts))
