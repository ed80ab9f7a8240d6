"""Slices of storage buffers.

WebGPU checks the usage of whole buffers: one dispatch may not read one range of a buffer and write
another range of it. So activations have buffers of their own, and slices serve to read parts of
large constant buffers (weights, rope tables).

This module does not know what a buffer holds or when it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import DeviceError

Bytes = npt.NDArray[np.uint8]

OFFSET_ALIGNMENT = 256
"""Alignment in bytes of a bound slice: the strictest that WebGPU allows an adapter to require."""


class BufferUsage(IntFlag):
    """What a buffer is used for; the values are those of WebGPU."""

    MAP_READ = 0x1
    MAP_WRITE = 0x2
    COPY_SRC = 0x4
    COPY_DST = 0x8
    UNIFORM = 0x40
    STORAGE = 0x80
    QUERY_RESOLVE = 0x200


COMPUTE_STAGE = 0x4
"""The shader stage of kernels, as WebGPU numbers them."""


def align(size: int, to: int = OFFSET_ALIGNMENT) -> int:
    """Return the smallest multiple of `to` that is at least `size`."""
    return -(-size // to) * to


@dataclass(eq=False)
class Buffer:
    """A storage buffer.

    Attributes:
        label: Name of the buffer.
        size: Bytes.
        gpu: The `GPUBuffer`; None before its device is open, and once it has been freed.
    """

    label: str
    size: int
    gpu: Any = None


@dataclass(frozen=True)
class BufferSlice:
    """A range of a buffer.

    Attributes:
        buffer: The `Buffer`, or what stands in for it.
        offset: First byte, a multiple of `OFFSET_ALIGNMENT` when bound to a kernel.
        size: Bytes, a multiple of 4.
    """

    buffer: Any
    offset: int
    size: int

    def range(self, offset: int, size: int) -> BufferSlice:
        """Return the slice of `size` bytes that begins `offset` bytes after the start of this one.

        Raises:
            DeviceError: The range reaches beyond this slice.
        """
        if offset < 0 or size < 0 or offset + size > self.size:
            raise DeviceError(
                "range outside a buffer slice",
                expected=f"an end of at most {self.size} bytes",
                found=f"{size} bytes at offset {offset}",
            )
        return BufferSlice(self.buffer, self.offset + offset, size)

    def overlaps(self, other: BufferSlice) -> bool:
        """Return whether another slice has bytes in common with this one."""
        begins, ends = max(self.offset, other.offset), min(self.end, other.end)
        return self.buffer is other.buffer and begins < ends

    def contains(self, other: BufferSlice) -> bool:
        """Return whether all bytes of another slice are in this one."""
        same = self.buffer is other.buffer
        return same and self.offset <= other.offset and other.end <= self.end

    @property
    def end(self) -> int:
        """The byte behind the last one, from the start of the buffer."""
        return self.offset + self.size


def bind_group_entries(buffers: Sequence[BufferSlice]) -> list[dict[str, Any]]:
    """Return the bind group entries of some slices, which are given in binding order."""
    return [
        {
            "binding": index,
            "resource": {"buffer": part.buffer.gpu, "offset": part.offset, "size": part.size},
        }
        for index, part in enumerate(buffers)
    ]
