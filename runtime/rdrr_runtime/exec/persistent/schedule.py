"""The order of the calls of a pass, and the places where all workgroups must wait.

A phase waits if it touches memory that a phase since the last wait has touched, unless both only
read it. Phases in between run without waiting for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_device.buffers import BufferSlice
from rdrr_device.shaders import Access

from rdrr_runtime.phases.phase import Phase

Range = tuple[BufferSlice, bool]
"""A range of memory that a phase touches, and whether it writes there."""


def ranges(phase: Phase) -> list[Range]:
    """Return the memory that a phase touches."""
    pairs = zip(phase.bindings, phase.slices, strict=True)
    return [(memory, one.access is Access.READ_WRITE) for one, memory in pairs]


def waits(phases: Sequence[Phase]) -> list[bool]:
    """Return for each phase whether all calls before it must be done first."""
    found: list[bool] = []
    since: list[Range] = []
    for one in phases:
        own = ranges(one)
        must_wait = any(_conflict(a, b) for a in own for b in since)
        found.append(must_wait)
        since = own if must_wait else [*since, *own]
    return found


def handed_over(phases: Sequence[Phase]) -> set[int]:
    """Return the ids of buffers in which one phase leaves what another phase reads or writes.

    The workgroups of the later phase must see these writes, so the module declares the buffers
    `@coherent`. The caches of a layer are not among them: only its own phase touches their ranges.
    """
    found: set[int] = set()
    written: list[tuple[int, BufferSlice]] = []
    touched: list[tuple[int, BufferSlice]] = []
    for index, one in enumerate(phases):
        for memory, is_written in ranges(one):
            touched.append((index, memory))
            if is_written:
                written.append((index, memory))
    by_buffer: dict[int, list[tuple[int, BufferSlice]]] = {}
    for index, memory in touched:
        by_buffer.setdefault(id(memory.buffer), []).append((index, memory))
    for index, memory in written:
        others = by_buffer[id(memory.buffer)]
        if any(at != index and _overlap(memory, other) for at, other in others):
            found.add(id(memory.buffer))
    return found


def _conflict(a: Range, b: Range) -> bool:
    return (a[1] or b[1]) and _overlap(a[0], b[0])


def _overlap(a: BufferSlice, b: BufferSlice) -> bool:
    same = a.buffer is b.buffer
    return same and a.offset < b.offset + b.size and b.offset < a.offset + a.size
