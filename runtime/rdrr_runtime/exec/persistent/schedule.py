"""The order of the calls of a pass, and the places where all workgroups must wait.

A phase waits if it touches memory that a phase since the last wait has touched, unless both only
read it. Phases in between run without waiting for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_device.buffers import BufferSlice
from rdrr_device.shaders import Access

from rdrr_runtime.exec.persistent.handover import Slots
from rdrr_runtime.phases.phase import Phase

Range = tuple[BufferSlice, bool]
"""A range of memory that a phase touches, and whether it writes there."""


def ranges(phase: Phase, slots: Slots) -> list[Range]:
    """Return the memory that a phase touches, without the values that are handed over."""
    return [
        (
            phase.buffers[binding.name],
            binding.access is Access.READ_WRITE and binding.name not in slots.writes,
        )
        for binding in phase.bindings
        if binding.name in slots.memory
    ]


def waits(phases: Sequence[Phase], slots: Sequence[Slots]) -> list[bool]:
    """Return for each phase whether all calls before it must be done first.

    Args:
        phases: The phases, in order.
        slots: Their values that are handed over.
    """
    waiting: list[bool] = []
    since: list[Range] = []
    for phase, handed in zip(phases, slots, strict=True):
        touched = ranges(phase, handed)
        must_wait = any(_conflict(a, b) for a in touched for b in since)
        waiting.append(must_wait)
        since = touched if must_wait else [*since, *touched]
    return waiting


def shared_buffers(phases: Sequence[Phase], slots: Sequence[Slots]) -> set[int]:
    """Return the ids of buffers in which one phase leaves what a later phase reads or writes.

    The workgroups of the later phase must see these writes, so the module declares the buffers
    `@coherent`. The caches of a layer are not among them: only its own phase touches their ranges.
    """
    written: dict[int, list[tuple[int, BufferSlice]]] = {}
    shared: set[int] = set()
    for index, (phase, handed) in enumerate(zip(phases, slots, strict=True)):
        for memory, is_written in ranges(phase, handed):
            earlier = written.setdefault(id(memory.buffer), [])
            if any(at != index and memory.overlaps(other) for at, other in earlier):
                shared.add(id(memory.buffer))
            if is_written:
                earlier.append((index, memory))
    return shared


def _conflict(a: Range, b: Range) -> bool:
    return (a[1] or b[1]) and a[0].overlaps(b[0])
