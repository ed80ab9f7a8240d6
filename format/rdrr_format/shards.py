"""Shards: their names, their descriptions, and how byte spans of the stream map to them.

All weights of a package form one stream of bytes, which is cut into files of equal size, the
shards. Only the last one can be shorter, and a tensor can span several. Each tensor starts at a
multiple of `ALIGNMENT` in the stream; the zeros before it count towards the size of the shard. A
shard can be compressed as a whole file (`rdrr_format.compression`): offsets then refer to its
uncompressed content, but size and hash to the file. `rdrr_format.shard_writer` writes shards and
`rdrr_format.shard_reader` reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from rdrr_format.compression import Compression

DEFAULT_SHARD_SIZE = 64 << 20
ALIGNMENT = 256
"""Alignment of tensors in the stream, in bytes."""


@dataclass(frozen=True)
class ShardSpan:
    """A span of consecutive bytes in one shard."""

    shard_index: int
    offset: int
    size: int


@dataclass(frozen=True)
class ShardInfo:
    """A finished shard.

    Attributes:
        index: Number of the shard, from 0.
        filename: `shard_00000.bin` and so on.
        size: Bytes of the file.
        hash: Hash of the file, in hexadecimal.
        offset: Sum of the sizes of the shards before it.
        compression: `zstd`, or None.
        uncompressed_size: Uncompressed bytes of a compressed shard; otherwise None.
    """

    index: int
    filename: str
    size: int
    hash: str
    offset: int
    compression: str | None = None
    uncompressed_size: int | None = None


class ShardLike(Protocol):
    """What a reader needs to know about a shard; entries of a manifest satisfy it."""

    @property
    def filename(self) -> str:
        """File name in the store."""

    @property
    def size(self) -> int:
        """Declared size of the file in bytes."""

    @property
    def hash(self) -> str:
        """Declared hash of the file."""

    @property
    def compression(self) -> str | None:
        """`zstd`, or None."""

    @property
    def uncompressed_size(self) -> int | None:
        """Declared uncompressed bytes of a compressed shard."""


class SpanLike(Protocol):
    """What a reader needs to know about a byte span; entries of a manifest satisfy it."""

    @property
    def shard_index(self) -> int:
        """Number of the shard."""

    @property
    def offset(self) -> int:
        """First byte in the shard."""

    @property
    def size(self) -> int:
        """Length in bytes."""


_SHARD_NAME = re.compile(r"shard_\d+\.bin(\.zst)?")


def is_shard_name(name: str) -> bool:
    """Return whether a file name has the form that writers give to shards."""
    return _SHARD_NAME.fullmatch(name) is not None


def shard_name(index: int, compression: Compression | None = None) -> str:
    """Return the file name of a shard."""
    return f"shard_{index:05d}.bin" + (".zst" if compression else "")


def plan_spans(start: int, size: int, shard_size: int) -> tuple[ShardSpan, ...]:
    """Return the spans in shards of `size` bytes that begin at byte `start` of the stream."""
    spans: list[ShardSpan] = []
    while size > 0:
        index, offset = divmod(start, shard_size)
        count = min(size, shard_size - offset)
        spans.append(ShardSpan(index, offset, count))
        start, size = start + count, size - count
    return tuple(spans)


def align_up(position: int, alignment: int = ALIGNMENT) -> int:
    """Return the smallest multiple of `alignment` that is at least `position`."""
    return -(-position // alignment) * alignment
