"""Storage buffers and ranges of them.

WebGPU checks usage by whole buffer: one dispatch may not read one range of a buffer and write
another range of the same buffer. So activations live in buffers of their own, and a slice is for
reading parts of large constant buffers (weights, rope tables).

What lies in a buffer and when it is written is the program's business, not this module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rdrr_format.errors import DeviceError

OFFSET_ALIGNMENT = 256  # the strictest that WebGPU lets an adapter ask for


def align(size: int, to: int = OFFSET_ALIGNMENT) -> int:
    """The next multiple of `to` that is not below `size`."""
    return -(-size // to) * to


@dataclass(frozen=True)
class BufferSlice:
    """A range of a GPU buffer.

    Attributes:
        buffer: The `GPUBuffer`.
        offset: First byte, a multiple of `OFFSET_ALIGNMENT` when bound to a kernel.
        size: Bytes, a multiple of 4.
    """

    buffer: Any
    offset: int
    size: int

    def range(self, offset: int, size: int) -> BufferSlice:
        """A part of this slice, `offset` bytes after its start.

        Raises:
            DeviceError: The part reaches beyond the slice.
        """
        if offset < 0 or size < 0 or offset + size > self.size:
            raise DeviceError(
                "range outside a buffer slice",
                expected=f"at most {self.size} bytes",
                found=f"{offset} + {size}",
            )
        return BufferSlice(self.buffer, self.offset + offset, size)


def bind_group_entries(buffers: Sequence[BufferSlice]) -> list[dict[str, Any]]:
    """Return the entries of a bind group, one for each slice in binding order."""
    return [
        {
            "binding": index,
            "resource": {"buffer": one.buffer, "offset": one.offset, "size": one.size},
        }
        for index, one in enumerate(buffers)
    ]
