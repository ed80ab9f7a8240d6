"""Hashes of shards, by name, as one table.

A row says how a running hash is made and how it is written down; another algorithm is another
row. Hashes are lower-case hexadecimal without a prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Buffer, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from rdrr_format.errors import FormatError


class Hasher(Protocol):
    """A running hash, as in hashlib."""

    def update(self, data: Buffer, /) -> None:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """The hash so far, in hexadecimal."""


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


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {row.name: row for row in (Algorithm("sha256", 64, hashlib.sha256),)}
)


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        FormatError: It is not in the table.
    """
    found = ALGORITHMS.get(name)
    if found is None:
        raise FormatError("unknown hash algorithm", expected=" ".join(ALGORITHMS), found=name)
    return found


def hash_bytes(data: Buffer, name: str = "sha256") -> str:
    """The hash of some bytes.

    Raises:
        FormatError: Unknown algorithm.
    """
    running = algorithm(name).start()
    running.update(data)
    return running.hexdigest()
