"""Values that phases of a pass hand to each other word by word, without waiting for all workgroups.

Each such value has memory of its own, which is empty when the pass begins: all its words are
`EMPTY`. A phase writes the words, and a reader looks at those that it needs until they are full
(handover.wgsl). So a word says by itself that it has arrived, and no barrier is needed, which would
take an arrival, a look and a load, one after the other. In the literature on parallel computers
this is full/empty synchronization.

A value can be handed over if its writer fills every word that is read (`Record.fills`) and all
accesses to it are to elements of 32 bits, or to vectors of them. All other values stay in the
buffers of the pass, see `rdrr_runtime.exec.persistent.schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice, align
from rdrr_device.shaders import Access

from rdrr_runtime.exec.persistent.declarations import Names, declarations
from rdrr_runtime.exec.persistent.elements import has_reads
from rdrr_runtime.phases.phase import Phase

EMPTY = 0xFF80FF80
"""A word without a value. It is a NaN that no arithmetic gives, in each half as f16 too, and among
four int8 codes it would have -128, which is no code."""

HEAD_WORDS = 4
"""Words in front of those of the values, see handover.wgsl."""

BINDINGS = ("words1", "words2", "words4")
"""Names under which handover.wgsl declares the words; without aliases only the first one."""

SWIZZLED = 128
"""Words that change places where words are atomic, see handover.wgsl: those of 32 vectors of 4."""

WORD_BYTES = 4
ALIGNMENT = 16

WIDTHS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("f32", "u32", "i32"), 1)
    | {f"vec{n}<{scalar}>": n for n in (2, 4) for scalar in ("f32", "u32", "i32")}
)
"""Words of each element type that can be handed over."""


def empty_words(words: int) -> npt.NDArray[np.uint32]:
    """Return what the buffer of a number of words holds before the first pass, with its head."""
    content = np.full(align(HEAD_WORDS + words, SWIZZLED), EMPTY, np.uint32)
    content[0] = 0  # passes so far
    return content


@dataclass(frozen=True)
class Slots:
    """Where the values that a phase reads and writes are handed over.

    Attributes:
        reads: First word of the value that a binding reads, by the binding's name.
        writes: The same for the value that it writes.
        memory: Bindings through which the phase reads or writes buffers of the pass.
    """

    reads: Mapping[str, int]
    writes: Mapping[str, int]
    memory: frozenset[str]


@dataclass(frozen=True)
class _Use:
    """How a phase uses its bindings.

    Attributes:
        widths: Words of the elements of each binding; None where they cannot be handed over.
        reads: Bindings that it reads, also those that it writes as well.
    """

    widths: Mapping[str, int | None]
    reads: tuple[str, ...]


@dataclass
class _Value:
    """What a phase writes to a range of memory, until another phase writes there.

    Attributes:
        writer: Index of the phase.
        name: Its binding.
        memory: The range.
        fits: Whether it can be handed over.
        readers: The phases that read it, and their bindings.
    """

    writer: int
    name: str
    memory: BufferSlice
    fits: bool
    readers: list[tuple[int, str]] = field(default_factory=list)


def assign_slots(
    phases: Sequence[Phase], results: Sequence[BufferSlice] = ()
) -> tuple[list[Slots], int]:
    """Return where the values of a pass are handed over, phase by phase, and the words of them all.

    Args:
        phases: The phases, in order.
        results: Memory that is read after the pass; what phases leave there is not handed over.
    """
    uses = [_use(phase) for phase in phases]
    reads: list[dict[str, int]] = [{} for _ in phases]
    writes: list[dict[str, int]] = [{} for _ in phases]
    words = 0
    for value in _values(phases, uses):
        is_result = any(value.memory.overlaps(result) for result in results)
        if is_result or not value.fits or not value.readers:
            continue
        writes[value.writer][value.name] = words
        for reader, name in value.readers:
            inside = phases[reader].buffers[name].offset - value.memory.offset
            reads[reader][name] = words + inside // WORD_BYTES
        words += align(value.memory.size, ALIGNMENT) // WORD_BYTES
    slots = [
        Slots(read, written, frozenset(_in_memory(phase, use, read, written)))
        for phase, use, read, written in zip(phases, uses, reads, writes, strict=True)
    ]
    return slots, words


def _in_memory(
    phase: Phase, use: _Use, reads: Mapping[str, int], writes: Mapping[str, int]
) -> Iterator[str]:
    """Yield the bindings of which a phase reads or writes something that is not handed over."""
    for binding in phase.bindings:
        reads_memory = binding.name in use.reads and binding.name not in reads
        writes_memory = binding.access is Access.READ_WRITE and binding.name not in writes
        if reads_memory or writes_memory:
            yield binding.name


def _values(phases: Sequence[Phase], uses: Sequence[_Use]) -> list[_Value]:
    """Return the values that the phases write, in order."""
    values: list[_Value] = []
    current: list[_Value] = []
    for index, (phase, use) in enumerate(zip(phases, uses, strict=True)):
        for name in use.reads:
            _read(current, index, name, phase.buffers[name], use.widths[name])
        for binding in phase.bindings:
            if binding.access is Access.READ_WRITE:
                fits = phase.record.fills and use.widths[binding.name] is not None
                value = _Value(index, binding.name, phase.buffers[binding.name], fits)
                current = _after(current, value)
                values.append(value)
    return values


def _read(
    current: Sequence[_Value], reader: int, name: str, memory: BufferSlice, width: int | None
) -> None:
    """Note that a phase reads memory, which may be a part of a current value."""
    parts = [value for value in current if value.memory.overlaps(memory)]
    if parts and width is not None and parts[-1].memory.contains(memory):
        inside = memory.offset - parts[-1].memory.offset
        if inside % (width * WORD_BYTES) == 0:
            parts[-1].readers.append((reader, name))
            return
    for part in parts:
        part.fits = False


def _after(current: Sequence[_Value], written: _Value) -> list[_Value]:
    """Return the values that are current once another one has been written."""
    kept = []
    for value in current:
        if value.memory.overlaps(written.memory) and not written.fits:
            # Some of its elements may stay in force, so whoever reads them needs both in memory.
            value.fits = False
        if not written.memory.contains(value.memory):
            kept.append(value)
    return [*kept, written]


def _use(phase: Phase) -> _Use:
    """Return how a phase uses its bindings."""
    declared = declarations(phase.record.source)
    names = Names(declared, phase.record.constants)
    arrays = {
        declaration.name: names.array(declaration.type)
        for declaration in declared
        if declaration.kind == "storage"
    }
    widths = {
        name: None if array is None else WIDTHS.get(array.element) for name, array in arrays.items()
    }
    reads = tuple(
        binding.name
        for binding in phase.bindings
        if binding.access is Access.READ
        or widths[binding.name] is None
        or has_reads(declared, binding.name)
    )
    return _Use(widths, reads)
