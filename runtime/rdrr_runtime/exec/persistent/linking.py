"""Linking: the shaders of several phases as one WGSL module, with a table of their calls.

A unit is a phase's function with its constants and the large buffers that it binds; phases that
differ only in the ranges of these buffers share a unit. Storage buffers are declared once for each
buffer and element type, and an access adds the offset of the call, which the table holds. Values
that phases hand to each other are in words of their own (`handover`). Arrays in workgroup memory
are laid over each other, since only one unit runs at a time, those of floats over words.

`rdrr_runtime.exec.persistent.renaming` rewrites the text of each unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_device.shaders import Access, ShaderFolder

from rdrr_runtime.exec.persistent.declarations import (
    Declaration,
    Names,
    UnlinkableError,
    declarations,
)
from rdrr_runtime.exec.persistent.elements import (
    CastElement,
    HandedElement,
    StoredElement,
    is_changed_in_place,
)
from rdrr_runtime.exec.persistent.handover import EMPTY, SWIZZLED, WORD_BYTES, Slots, assign_slots
from rdrr_runtime.exec.persistent.renaming import Renaming
from rdrr_runtime.exec.persistent.schedule import shared_buffers, waits
from rdrr_runtime.exec.persistent.units import MOST_OFFSETS, Offset, Unit
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.phase import FOLDER as PHASES
from rdrr_runtime.phases.phase import Phase

FOLDER = ShaderFolder("rdrr_runtime.exec.persistent")

CALL_WORDS = 4 + MOST_OFFSETS
"""Words of a call in the table, a multiple of 4: unit, items, token rows of a call (0 if the items
do not depend on them), whether to wait first, and the offsets of its operands."""

ITEMS, WAITS = 1, 3
"""Columns of the table."""

MOST_RANGES = MOST_OFFSETS // 2
"""Ranges of words of a call that stands for a phase that is left out: one that it reads, and those
that it writes."""

WORDS: Mapping[str, str] = MappingProxyType(
    {"f32": "u32", "vec2<f32>": "vec2<u32>", "vec4<f32>": "vec4<u32>"}
)
"""Element types whose arrays in workgroup memory lie over those of another type."""

OMITTED = 0xFFFF
"""The unit of calls that stand for phases that are left out."""

MOST_UNITS = 16
"""Most units of a module. Compilers inline them all: NVIDIA's took 1 s for 10 units on an H200, and
more than 38 s for 24. Beyond some number of branches it also makes each of them slower."""

OTHER_BYTES = 64
"""Workgroup memory of the variables that are not arrays, and of alignment; an upper bound."""


@dataclass(frozen=True)
class Linked:
    """A list of phases as one kernel.

    Attributes:
        source: WGSL of the module, bindings not numbered.
        buffers: Whole buffers by the names under which the module declares them, without the table
            and the gate.
        table: Calls, u32 [calls, CALL_WORDS].
        omitted: The calls that stand for phases that are left out, in the same form: they wait for
            a value that the phase reads, and fill those that it hands over.
        workgroup_bytes: Upper bound of the workgroup memory that the module declares.
        words: Words of the values that the phases hand over.
    """

    source: str
    buffers: Mapping[str, BufferSlice]
    table: npt.NDArray[np.uint32]
    omitted: npt.NDArray[np.uint32]
    workgroup_bytes: int
    words: int


def link(
    phases: Sequence[Phase],
    grid: Grid,
    *,
    rows: int = 1,
    results: Sequence[BufferSlice] = (),
    aliased: bool = True,
) -> Linked:
    """Join phases in one module.

    Args:
        phases: The phases, in order; all have workgroups of as many threads as the grid.
        grid: The workgroups.
        rows: Most token rows of a step; a step of a pass with one row has one.
        results: Memory that is read after the pass.
        aliased: Whether a buffer that is written may be bound several times, as arrays of different
            elements, and `@coherent`, so that workgroups see in memory what others have written.
            Values that are handed over they see in any case.

    Raises:
        UnlinkableError: A phase has another number of threads, or a form that cannot be joined.
    """
    slots, words = assign_slots(phases, results)
    shared = shared_buffers(phases, slots)
    if shared and not aliased:
        raise UnlinkableError(
            "a phase leaves values in memory, which other workgroups need not see there"
        )
    linker = _Linker(grid, shared, aliased=aliased, rows=rows)
    calls = list(zip(phases, slots, waits(phases, slots), strict=True))
    table = [linker.call(phase, handed, must_wait=wait) for phase, handed, wait in calls]
    omitted = [_omitted(phase, handed, must_wait=wait) for phase, handed, wait in calls]
    return linker.finish(table, omitted, words)


def _omitted(phase: Phase, slots: Slots, *, must_wait: bool) -> list[int]:
    """Return the call that stands for a phase that is left out, see `Linked.omitted`."""
    latest = sorted(slots.reads.items(), key=lambda item: item[1])[-1:]
    ranges = [*(latest or [("", 0)]), *slots.writes.items()]
    if len(ranges) > MOST_RANGES:
        raise UnlinkableError(f"{phase.label} hands over {len(ranges) - 1} values")
    sizes = [phase.buffers[name].size // WORD_BYTES if name else 0 for name, _ in ranges]
    words = [word for (_, first), size in zip(ranges, sizes, strict=True) for word in (first, size)]
    return [OMITTED, 0, 0, int(must_wait), *words, *[0] * (MOST_OFFSETS - len(words))]


@dataclass
class _Buffer:
    """A storage variable of the module: a whole buffer seen as one element type."""

    name: str
    type: str
    memory: BufferSlice


@dataclass
class _Pool:
    """An array in workgroup memory over which the arrays of this element type are laid."""

    name: str
    element: str
    element_bytes: int
    count: int = 0


class _Linker:
    """The module under construction.

    Args:
        grid: The workgroups.
        coherent: Ids of the buffers that hand results from one phase to another.
        aliased: See `link`.
        rows: See `link`.
    """

    def __init__(self, grid: Grid, coherent: set[int], *, aliased: bool, rows: int) -> None:
        self._threads, self._groups, self._rows = grid.threads, grid.groups, rows
        self._coherent, self._aliased = coherent, aliased
        self._units: dict[Any, Unit] = {}
        self._buffers: dict[tuple[int, str], _Buffer] = {}
        self._written: set[int] = set()
        self._pools: dict[str, _Pool] = {}
        self._structs: dict[str, str] = {}
        self._own_bytes = 0

    def call(self, phase: Phase, slots: Slots, *, must_wait: bool) -> list[int]:
        """Return the row of a phase in the table of calls."""
        if phase.record.threads != self._threads:
            raise UnlinkableError(f"{phase.label} has {phase.record.threads} threads")
        unit, work = self._unit(phase, slots), phase.work
        # Without a loop that runs once attention takes less time, the output projection more.
        unit.loops |= unit.by_rows or work.rows is None or work.items > self._groups
        offsets = unit.offsets_of(phase, slots)
        return [unit.number, work.items, work.rows or 0, int(must_wait), *offsets]

    def finish(self, rows: list[list[int]], omitted: list[list[int]], words: int) -> Linked:
        """Return the module with the calls `rows`, which hand over `words` words."""
        units = list(self._units.values())
        if len(units) > MOST_UNITS:
            raise UnlinkableError(f"it has {len(units)} different phases, at most {MOST_UNITS}")
        step = next(
            (buffer.name for buffer in self._buffers.values() if buffer.type == "Step"), None
        )
        if step is None:
            raise UnlinkableError("no phase reads the step")
        has_subgroups = any(unit.record.has_subgroups for unit in units)
        text = FOLDER.render(
            "pass.wgsl",
            THREAD=PHASES.render("snippets/thread.wgsl", SUBGROUPS=has_subgroups),
            STRUCTS="\n".join(self._structs.values()),
            BUFFERS="\n".join(map(self._declared, self._buffers.values())),
            SHARED="\n".join(map(_declared_pool, self._pools.values())),
            UNITS=tuple(
                _UnitText(
                    unit.number, unit.text, unit.call, unit.by_rows, unit.loops, tuple(unit.offsets)
                )
                for unit in units
            ),
            OMITTED=OMITTED,
            RANGES=MOST_RANGES,
            STEP=step,
            SUBGROUPS=has_subgroups,
            WG=self._threads,
            CALLS=len(rows),
            WORDS=CALL_WORDS,
            EMPTY=EMPTY,
            HALF_WORDS=words,
            ALIASED=self._aliased,
            SWIZZLED=SWIZZLED,
        )
        if any(unit.record.source.startswith("enable f16") for unit in units):
            text = f"enable f16;\n{text}"
        pooled = sum(pool.count * pool.element_bytes for pool in self._pools.values())
        return Linked(
            text,
            {buffer.name: buffer.memory for buffer in self._buffers.values()},
            np.array(rows, np.uint32),
            np.array(omitted, np.uint32),
            pooled + self._own_bytes + OTHER_BYTES,
            words,
        )

    def _declared(self, buffer: _Buffer) -> str:
        # WebGPU allows no mix of read-only and writing bindings of one buffer in a dispatch.
        access = "read_write" if id(buffer.memory.buffer) in self._written else "read"
        attribute = "@coherent\n" if id(buffer.memory.buffer) in self._coherent else ""
        return f"{attribute}var<storage, {access}> {buffer.name}: {buffer.type};"

    def _unit(self, phase: Phase, slots: Slots) -> Unit:
        record = phase.record
        constants = {"WG": self._threads, **record.constants}
        in_memory = {
            binding.name: phase.buffers[binding.name]
            for binding in phase.bindings
            if binding.name in slots.memory
        }
        key = (
            record.source,
            tuple(sorted(constants.items())),
            tuple((name, id(memory.buffer)) for name, memory in in_memory.items()),
            tuple(slots.reads),
            tuple(slots.writes),
            phase.work.rows,
        )
        unit = self._units.get(key)
        if unit is None:
            names = Names(declarations(record.source), constants)
            by_rows = phase.work.rows is not None and self._rows > 1
            unit = self._units[key] = Unit(len(self._units), record, by_rows, names)
            self._write(unit, phase, slots, in_memory)
        return unit

    def _write(
        self, unit: Unit, phase: Phase, slots: Slots, in_memory: Mapping[str, BufferSlice]
    ) -> None:
        """Fill in the texts of a unit, and declare the buffers and arrays that it needs."""
        renaming = Renaming(unit.number, declarations(unit.record.source), unit.names)
        for struct in renaming.shared_structs:
            if self._structs.setdefault(struct.name, struct.text) != struct.text:
                raise UnlinkableError(f"two forms of the struct {struct.name}")
        storage = {
            declaration.name: declaration
            for declaration in renaming.declared
            if declaration.kind == "storage"
        }
        for index, binding in enumerate(phase.bindings):
            name, number = binding.name, f"{unit.number}_{index}"
            array = unit.names.array(storage[name].type)
            if name in in_memory:
                variable = self._buffer(unit.names, storage[name], in_memory[name]).name
                if binding.access is Access.READ_WRITE and name not in slots.writes:
                    self._written.add(id(in_memory[name].buffer))
                if array is None:
                    renaming.plain[name] = variable
                else:
                    size = unit.names.size_of(array.element)
                    offset = unit.add(Offset(f"at_{number}", name, size))
                    renaming.reads[name] = renaming.writes[name] = StoredElement(variable, offset)
            for handed, written, accesses in (
                (slots.writes, True, renaming.writes),
                (slots.reads, False, renaming.reads),
            ):
                if name in handed and array is not None:
                    accesses[name] = _handed(unit, array.element, name, number, written=written)
            if name in renaming.writes:
                renaming.reads.setdefault(name, renaming.writes[name])
        self._overlay(unit, renaming)
        unit.texts += map(renaming.text, renaming.own)

    def _buffer(self, names: Names, declaration: Declaration, memory: BufferSlice) -> _Buffer:
        array = names.array(declaration.type)
        type_ = names.resolved(declaration.type) if array is None else f"array<{array.element}>"
        key = (id(memory.buffer), type_)
        if key not in self._buffers:
            whole = BufferSlice(memory.buffer, 0, memory.buffer.size)
            self._buffers[key] = _Buffer(f"buffer_{len(self._buffers)}", type_, whole)
        return self._buffers[key]

    def _overlay(self, unit: Unit, renaming: Renaming) -> None:
        """Lay the arrays of a unit in workgroup memory over those of the others."""
        ends: dict[str, int] = {}
        for declaration in renaming.declared:
            if declaration.kind != "workgroup":
                continue
            array = unit.names.array(declaration.type)
            own_structs = {struct.name for struct in renaming.own if struct.kind == "struct"}
            if array is None or array.count is None or array.element in own_structs:
                unit.texts.append(renaming.renamed(declaration.text))
                if array is not None and array.count is not None:
                    size = unit.names.size_of(array.element)
                    self._own_bytes += size * unit.names.evaluate(array.count)
                continue
            stored = WORDS.get(array.element, array.element)
            if is_changed_in_place(renaming.declared, declaration.name):
                stored = array.element
            pool = self._pool(unit.names, stored)
            first = ends.get(stored, 0)
            ends[stored] = first + unit.names.evaluate(array.count)
            pool.count = max(pool.count, ends[stored])
            offset = f"{first}u" if first else ""
            renaming.reads[declaration.name] = (
                StoredElement(pool.name, offset)
                if stored == array.element
                else CastElement(pool.name, offset, array.element, stored)
            )

    def _pool(self, names: Names, element: str) -> _Pool:
        if element not in self._pools:
            name = "shared_" + re.sub(r"\W+", "_", element).strip("_")
            self._pools[element] = _Pool(name, element, names.size_of(element))
        return self._pools[element]


@dataclass(frozen=True)
class _UnitText:
    """A finished unit, as the template of the module takes it."""

    number: int
    text: str
    call: str
    by_rows: bool
    loops: bool
    offsets: tuple[Offset, ...]


def _handed(unit: Unit, type_: str, name: str, number: str, *, written: bool) -> HandedElement:
    """Return how a unit accesses the elements of a value that is handed over."""
    variable = f"{'to' if written else 'from'}_{number}"
    offset = Offset(variable, name, unit.names.size_of(type_), handed=True, written=written)
    return HandedElement(unit.add(offset), type_, offset.words)


def _declared_pool(pool: _Pool) -> str:
    return f"var<workgroup> {pool.name}: array<{pool.element}, {max(pool.count, 1)}>;"
