"""Buffers of intermediate values, and their reuse once a value has no further readers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice


class Workspace:
    """Buffers of intermediate values, shared by all passes of a model.

    Passes run one after the other, so they can share the buffers of values with the same width.

    Args:
        arena: Owner of the buffers.
        rows: Token rows that each buffer can hold.
        value_bytes: Bytes per element.
    """

    def __init__(self, arena: Arena, rows: int, value_bytes: int = 4) -> None:
        self._arena = arena
        self._rows = rows
        self._value_bytes = value_bytes
        self._slots: dict[tuple[int, int], BufferSlice] = {}
        self._named: dict[str, BufferSlice] = {}

    def named(self, name: str, size: int) -> BufferSlice:
        """Return the buffer of this name, with at least `size` bytes."""
        if name not in self._named or self._named[name].size < size:
            self._named[name] = self._arena.empty(name, size)
        return self._named[name]

    def slot(self, width: int, index: int) -> BufferSlice:
        """Return the buffer number `index` for values of `width` elements per row."""
        key = (width, index)
        if key not in self._slots:
            size = self._value_bytes * self._rows * width
            self._slots[key] = self._arena.empty(f"values.{width}.{index}", size)
        return self._slots[key]


@dataclass
class Values:
    """The buffer of each value of a pass; a buffer is reused after the last reader of its value.

    Attributes:
        workspace: Owner of the buffers.
        readers: Number of ops that still have to read each value.
        live: Width and buffer number of each live value.
        free: Numbers of the free buffers of each width.
        counts: Number of buffers of each width that the pass uses.
    """

    workspace: Workspace
    readers: Counter[str]
    live: dict[str, tuple[int, int]] = field(default_factory=dict)
    free: dict[int, list[int]] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)

    def allocate(self, name: str, width: int) -> BufferSlice:
        """Return a buffer for a new value of `width` elements per row."""
        spare = self.free.setdefault(width, [])
        if spare:
            index = spare.pop()
        else:
            index = self.counts[width]
            self.counts[width] += 1
        self.live[name] = (width, index)
        return self.workspace.slot(width, index)

    def get(self, name: str) -> BufferSlice:
        """Return the buffer of a value."""
        return self.workspace.slot(*self.live[name])

    def rename(self, old: str, new: str) -> None:
        """Rename a value that an op has changed in place."""
        self.live[new] = self.live.pop(old)

    def mark_read(self, *names: str | None) -> None:
        """Note that an op has read values; the buffer of a value is free after its last reader."""
        for name in names:
            if name is None:
                continue
            self.readers[name] -= 1
            if self.readers[name] == 0 and name in self.live:
                width, index = self.live.pop(name)
                self.free[width].append(index)
