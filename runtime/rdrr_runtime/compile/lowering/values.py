"""Buffers of intermediate values, and their reuse once a value has no further readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice


class Workspace:
    """Buffers of intermediate values, shared by all passes of a model.

    Passes run one after the other, so they can share the buffers of values with the same width.

    Args:
        arena: Owner of the buffers.
        rows: Token rows that each buffer can hold.
        value_bytes: Bytes per element.

    Attributes:
        value_bytes: Bytes per element.
    """

    def __init__(self, arena: Arena, rows: int, value_bytes: int = 4) -> None:
        self._arena = arena
        self._rows = rows
        self.value_bytes = value_bytes
        self._slots: dict[tuple[int, int], BufferSlice] = {}
        self._named: dict[str, BufferSlice] = {}

    def named(self, name: str, size: int) -> BufferSlice:
        """Return `size` bytes of the buffer of this name, which grows if it is too small."""
        if name not in self._named or self._named[name].size < size:
            self._named[name] = self._arena.empty(name, size)
        return self._named[name].range(0, size)

    def slot(self, width: int, index: int) -> BufferSlice:
        """Return the buffer number `index` for values of `width` elements per row."""
        key = (width, index)
        if key not in self._slots:
            size = self.value_bytes * self._rows * width
            self._slots[key] = self._arena.empty(f"values.{width}.{index}", size)
        return self._slots[key]


@dataclass
class Values:
    """The buffer of each value of a pass; a buffer is reused after the last reader of its value.

    Attributes:
        workspace: Owner of the buffers.
        readers: Number of ops that still have to read each value.
        rows: Token rows of a value; None for as many as the workspace has room for.
        live: Width and buffer number of each live value.
        free: Numbers of the free buffers of each width.
        counts: Number of buffers of each width that the pass uses.
        parts: For each value that is a part of another one, its buffer and the name of the other.
    """

    workspace: Workspace
    readers: Counter[str]
    rows: int | None = None
    live: dict[str, tuple[int, int]] = field(default_factory=dict)
    free: dict[int, list[int]] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    parts: dict[str, tuple[BufferSlice, str]] = field(default_factory=dict)

    def allocate(self, name: str, width: int) -> BufferSlice:
        """Return a buffer for a new value of `width` elements per row."""
        spare = self.free.setdefault(width, [])
        if spare:
            # Not the last one that became free: layers would take turns with buffers, and a pass in
            # one dispatch has a copy of a kernel for each combination of buffers.
            index = min(spare)
            spare.remove(index)
        else:
            index = self.counts[width]
            self.counts[width] += 1
        self.live[name] = (width, index)
        return self._slot(width, index)

    def _slot(self, width: int, index: int) -> BufferSlice:
        whole = self.workspace.slot(width, index)
        if self.rows is None:
            return whole
        return whole.range(0, self.workspace.value_bytes * self.rows * width)

    def allocate_parts(self, widths: Mapping[str, int], value_bytes: int) -> BufferSlice:
        """Return a buffer for values of one row that lie side by side, in the order of `widths`.

        `parts_refusal` must return None for them.
        """
        whole = f"buffer of {'+'.join(widths)}"  # not the name of a single value, which has readers
        buffer = self.allocate(whole, sum(widths.values()))
        self.readers[whole] = len(widths)
        offset = 0
        for name, width in widths.items():
            self.live[name] = (width, -1)
            self.parts[name] = (buffer.range(offset, value_bytes * width), whole)
            offset += value_bytes * width
        return buffer

    def get(self, name: str) -> BufferSlice:
        """Return the buffer of a value."""
        if name in self.parts:
            return self.parts[name][0]
        return self._slot(*self.live[name])

    def rename(self, old: str, new: str) -> None:
        """Rename a value that an op has changed in place."""
        self.live[new] = self.live.pop(old)
        if old in self.parts:
            self.parts[new] = self.parts.pop(old)

    def mark_read(self, *names: str | None) -> None:
        """Note that an op has read values; the buffer of a value is free after its last reader."""
        for name in names:
            if name is None:
                continue
            self.readers[name] -= 1
            if self.readers[name] == 0 and name in self.live:
                width, index = self.live.pop(name)
                part = self.parts.pop(name, None)
                if part is None:
                    self.free[width].append(index)
                else:
                    self.mark_read(part[1])


def parts_refusal(widths: Iterable[int], value_bytes: int) -> str | None:
    """Return why values cannot lie side by side in a buffer; None if they can.

    Args:
        widths: Elements of each.
        value_bytes: Bytes of an element.
    """
    *before, _ = widths
    uneven = next((width for width in before if value_bytes * width % OFFSET_ALIGNMENT), None)
    if uneven is None:
        return None
    return f"the value after one of {uneven} elements would not be aligned"
