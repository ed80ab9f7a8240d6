"""The seek table at the end of a compressed file, which says where its frames are.

The format is Zstandard's seekable format, version 0.1.0, a public standard: independent frames,
then a skippable frame with the sizes of all of them, whose last four bytes are a magic number. Any
Zstandard decoder reads such a file from start to end; one that knows the table reads any part of
it. This module only encodes and reads the table; it does not compress.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rdrr_format.errors import ShardError
from rdrr_format.stores import Bytes

MAX_FRAME = 16 << 20
"""Largest uncompressed size in bytes of a frame that is read; rdrr writes frames of 1 MiB."""

MAX_FRAMES = 1 << 20
"""Largest number of frames in a shard; with frames of 1 MiB that is 1 TiB."""

_HEADER = struct.Struct("<II")  # magic number of a skippable frame, bytes that follow
_FOOTER = struct.Struct("<IBI")  # number of frames, descriptor, magic number
_SKIPPABLE, _SEEKABLE = 0x184D2A5E, 0x8F92EAB1
_CHECKSUM_FLAG, _RESERVED = 0x80, 0x7C
_FIRST_READ = 1 << 14
"""Bytes of the end of the file to read first: enough for the table of a shard of default size."""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SeekTable:
    """Positions of the frames in the file and in the data; one more entry than there are frames.

    Attributes:
        offsets: int64, first byte of each frame in the file, then the end of the last.
        starts: int64, first byte of each frame's content in the data, then the size of the data.
    """

    offsets: Offsets
    starts: Offsets

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.starts) - 1

    def covering(self, start: int, size: int) -> range:
        """Return the frames that hold bytes `start` to `start + size` of the data."""
        # Of several frames with the same start all but the last are empty.
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, start + size, side="left"))
        return range(first, last)


def encode_seek_table(sizes: Sequence[tuple[int, int]]) -> bytes:
    """Encode a seek table.

    Args:
        sizes: Compressed and uncompressed bytes of each frame.
    """
    entries = b"".join(struct.pack("<II", *pair) for pair in sizes)
    footer = _FOOTER.pack(len(sizes), 0, _SEEKABLE)
    return _HEADER.pack(_SKIPPABLE, len(entries) + len(footer)) + entries + footer


def read_seek_table(
    read: Callable[[int, int], Bytes], file_size: int, data_size: int, where: str
) -> SeekTable:
    """Read and check the table of a file.

    Args:
        read: Function of offset and size that returns those bytes of the file.
        file_size: Size of the file in bytes.
        data_size: Declared uncompressed bytes of all frames together.
        where: Name of the file, for error messages.

    Raises:
        ShardError: There is no table, or it contradicts the file or the declared size.
    """
    tail = read(max(0, file_size - _FIRST_READ), min(file_size, _FIRST_READ)).tobytes()
    frames, entry = _footer(tail, where)
    if frames > MAX_FRAMES:
        raise ShardError(
            "too many frames", where=where, expected=f"at most {MAX_FRAMES}", found=frames
        )
    size = _HEADER.size + frames * entry + _FOOTER.size
    if size > file_size:
        raise ShardError(
            "the seek table is truncated", where=where, expected=f"{size} bytes", found=file_size
        )
    if size > len(tail):
        tail = read(file_size - size, size).tobytes()
    table = tail[len(tail) - size :]
    if _HEADER.unpack_from(table) != (_SKIPPABLE, size - _HEADER.size):
        raise ShardError("the header of the seek table does not match its footer", where=where)
    # An entry may have a third word, a checksum, which the hash of the shard makes superfluous.
    words = np.frombuffer(table, "<u4", frames * entry // 4, _HEADER.size)
    sizes = words.reshape(frames, entry // 4)[:, :2].astype(np.int64)
    _check_sizes(sizes, file_size - size, data_size, where)
    edges = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(sizes, axis=0)])
    return SeekTable(edges[:, 0], edges[:, 1])


def _footer(tail: bytes, where: str) -> tuple[int, int]:
    """Return the number of frames, and the bytes of each entry of the table."""
    if len(tail) < _HEADER.size + _FOOTER.size:
        raise ShardError("too short for a seek table", where=where, found=f"{len(tail)} bytes")
    frames, descriptor, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
    if magic != _SEEKABLE:
        raise ShardError(
            "no seek table at the end",
            where=where,
            expected=f"{_SEEKABLE:#x}",
            found=f"{magic:#x}",
            hint="the file is truncated, or another program compressed it",
        )
    if descriptor & _RESERVED:
        raise ShardError(
            "the seek table is of an unknown kind", where=where, found=f"{descriptor:#x}"
        )
    return frames, 12 if descriptor & _CHECKSUM_FLAG else 8


def _check_sizes(sizes: Offsets, frames_size: int, data_size: int, where: str) -> None:
    """Refuse sizes that would make a reader read or allocate more than the shard declares."""
    compressed, content = (int(total) for total in sizes.sum(axis=0))
    if compressed != frames_size:
        raise ShardError(
            "the frames do not fill the file",
            where=where,
            expected=f"{frames_size} bytes",
            found=f"{compressed} bytes",
        )
    if content != data_size:
        raise ShardError(
            "the frames do not hold the declared number of bytes",
            where=where,
            expected=f"{data_size} bytes",
            found=f"{content} bytes",
        )
    largest = int(sizes[:, 1].max(initial=0))
    if largest > MAX_FRAME:
        raise ShardError(
            f"frame {int(sizes[:, 1].argmax())} is too large",
            where=where,
            expected=f"at most {MAX_FRAME} bytes",
            found=f"{largest} bytes",
        )
