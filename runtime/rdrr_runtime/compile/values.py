"""Buffers of intermediate values: which of them holds what, and when it is free again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice


class Workspace:
    """Buffers of intermediate values, shared by the programs of a model.

    Programs run one after another, so the nth value of some width may lie in the same buffer in
    each of them.

    Args:
        arena: Owner of the buffers.
        rows: Token rows that every buffer holds.
        value_bytes: Bytes of an element.
    """

    def __init__(self, arena: Arena, rows: int, value_bytes: int = 4) -> None:
        self._arena = arena
        self._rows = rows
        self._value_bytes = value_bytes
        self._slots: dict[tuple[int, int], BufferSlice] = {}
        self._named: dict[str, BufferSlice] = {}

    def named(self, name: str, size: int) -> BufferSlice:
        """A buffer of at least `size` bytes that is not counted in token rows."""
        if name not in self._named or self._named[name].size < size:
            self._named[name] = self._arena.empty(name, size)
        return self._named[name]

    def slot(self, width: int, index: int) -> BufferSlice:
        """The `index`-th buffer for values of `width` elements a row."""
        key = (width, index)
        if key not in self._slots:
            size = self._value_bytes * self._rows * width
            self._slots[key] = self._arena.empty(f"values.{width}.{index}", size)
        return self._slots[key]


@dataclass
class Values:
    """Which buffer holds which value, with buffers reused once a value has had its last reader."""

    workspace: Workspace
    readers: Counter[str]
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    free: dict[int, list[int]] = field(default_factory=dict)
    made: Counter[int] = field(default_factory=Counter)

    def take(self, name: str, width: int) -> BufferSlice:
        """A buffer for a new value."""
        spare = self.free.setdefault(width, [])
        if spare:
            index = spare.pop()
        else:
            index = self.made[width]
            self.made[width] += 1
        self.held[name] = (width, index)
        return self.workspace.slot(width, index)

    def get(self, name: str) -> BufferSlice:
        """The buffer of a value."""
        return self.workspace.slot(*self.held[name])

    def rename(self, old: str, new: str) -> None:
        """Let a value that was changed in place go on under its new name."""
        self.held[new] = self.held.pop(old)

    def read(self, *names: str | None) -> None:
        """Count a reader; the buffer is free after the last one."""
        for name in names:
            if name is None:
                continue
            self.readers[name] -= 1
            if self.readers[name] == 0 and name in self.held:
                width, index = self.held.pop(name)
                self.free[width].append(index)
