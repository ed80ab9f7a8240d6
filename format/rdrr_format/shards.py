"""What a shard is: its name, its description, and where a run of the stream lies in shards.

The stream of a package's bytes is cut into files of equal size. Shards are filled exactly and only
the last is short, so a tensor may lie in several. Each tensor starts at a multiple of `ALIGNMENT`
in the stream; the zeros before it count in the shard's size. A shard may be compressed as a whole
file (`rdrr_format.compression`): places are then those of its content, and size and hash those of
the file. `rdrr_format.shard_writer` writes them and `rdrr_format.shard_reader` reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from rdrr_format.compression import Compression

DEFAULT_SHARD_SIZE = 64 << 20
ALIGNMENT = 256


@dataclass(frozen=True)
class ShardSpan:
    """A run of bytes in one shard."""

    shard_index: int
    offset: int
    size: int


@dataclass(frozen=True)
class ShardInfo:
    """A finished shard.

    Attributes:
        index: Position, counted from 0.
        filename: `shard_00000.bin` and so on.
        size: Bytes on disk.
        hash: Hex digest of the bytes on disk.
        offset: Sum of the sizes of the shards before it.
        compression: `zstd`, or None.
        uncompressed_size: Bytes of the content of a compressed shard; else None.
    """

    index: int
    filename: str
    size: int
    hash: str
    offset: int
    compression: str | None = None
    uncompressed_size: int | None = None


class ShardLike(Protocol):
    """What a reader needs of a shard's description; a manifest's entries fit."""

    @property
    def filename(self) -> str:
        """File name inside the store."""
        ...

    @property
    def size(self) -> int:
        """Declared bytes."""
        ...

    @property
    def hash(self) -> str:
        """Declared digest."""
        ...

    @property
    def compression(self) -> str | None:
        """`zstd`, or None."""
        ...

    @property
    def uncompressed_size(self) -> int | None:
        """Declared bytes of the content of a compressed shard."""
        ...


class SpanLike(Protocol):
    """A run of bytes as a manifest's span states it."""

    @property
    def shard_index(self) -> int:
        """Shard."""
        ...

    @property
    def offset(self) -> int:
        """First byte in it."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...


_SHARD_NAME = re.compile(r"shard_\d+\.bin(\.zst)?")


def is_shard_name(name: str) -> bool:
    """Return whether a file's name is one that a writer gives to shards, compressed or not."""
    return _SHARD_NAME.fullmatch(name) is not None


def shard_name(index: int, compression: Compression | None = None) -> str:
    """File name of the shard at a position."""
    return f"shard_{index:05d}.bin" + (".zst" if compression else "")


def plan_spans(start: int, size: int, shard_size: int) -> tuple[ShardSpan, ...]:
    """Where `size` bytes lie that begin at byte `start` of the stream."""
    spans: list[ShardSpan] = []
    while size > 0:
        index, offset = divmod(start, shard_size)
        count = min(size, shard_size - offset)
        spans.append(ShardSpan(index, offset, count))
        start, size = start + count, size - count
    return tuple(spans)


def align_up(position: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment` that is not below `position`."""
    return -(-position // alignment) * alignment
