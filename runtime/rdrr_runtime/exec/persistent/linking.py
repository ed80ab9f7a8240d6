"""Linking: the shaders of several phases as one WGSL module, with a table of their calls.

A unit is a phase's function with its constants and the large buffers that it binds; phases that
differ only in the ranges of these buffers share a unit. Storage buffers are declared once for each
buffer and element type, and an access adds the offset of the call, which the table holds. Arrays in
workgroup memory are laid over each other, since only one unit runs at a time.

`rdrr_runtime.exec.persistent.renaming` rewrites the text of each unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from rdrr_runtime.exec.persistent.renaming import Renaming
from rdrr_runtime.exec.persistent.schedule import handed_over, waits
from rdrr_runtime.phases.launch import parameters
from rdrr_runtime.phases.phase import FOLDER as PHASES
from rdrr_runtime.phases.phase import MAX_BUFFERS, Phase, Record

FOLDER = ShaderFolder("rdrr_runtime.exec.persistent")

CALL_WORDS = 4 + MAX_BUFFERS
"""Words of a call in the table: unit, items, token rows of a call (0 if the items do not depend on
them), whether to wait first, and the offset of each buffer in elements."""

MOST_UNITS = 16
"""Most units of a module. Compilers inline them all: NVIDIA's took 1 s for 10 units on an H200, and
more than 38 s for 24."""

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
        workgroup_bytes: Upper bound of the workgroup memory that the module declares.
    """

    source: str
    buffers: Mapping[str, BufferSlice]
    table: npt.NDArray[np.uint32]
    workgroup_bytes: int


def link(phases: Sequence[Phase], *, threads: int) -> Linked:
    """Join phases in one module.

    Args:
        phases: The phases, in order; all have workgroups of `threads` threads.
        threads: Threads of a workgroup.

    Raises:
        UnlinkableError: A phase has another number of threads, or a form that cannot be joined.
    """
    linker = _Linker(threads, handed_over(phases))
    calls = zip(phases, waits(phases), strict=True)
    rows = [linker.call(one, must_wait=must_wait) for one, must_wait in calls]
    return linker.finish(rows)


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


@dataclass
class _Unit:
    """A phase's function in the module.

    Attributes:
        number: Suffix of its names.
        record: Shader and constants.
        by_rows: Whether the function is called for each group of token rows.
        names: Constants and types of the shader.
        offsets: For the number of each buffer that is an array, whose offset each call gives, the
            bytes of its elements.
        texts: Declarations with the names of the module.
    """

    number: int
    record: Record
    by_rows: bool
    names: Names
    offsets: dict[int, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All declarations."""
        return "\n".join(filter(None, self.texts))

    @property
    def call(self) -> str:
        """The call of the unit's function."""
        zero = set() if self.record.has_subgroups else {"subgroup_size"}
        if not self.by_rows:
            zero.add("row")
        given = ("0u" if one in zero else one for one in parameters(self.record.source))
        return f"phase_{self.number}({', '.join(given)})"


class _Linker:
    """The module under construction.

    Args:
        threads: Threads of a workgroup.
        coherent: Ids of the buffers that hand results from one phase to another.
    """

    def __init__(self, threads: int, coherent: set[int]) -> None:
        self._threads = threads
        self._coherent = coherent
        self._units: dict[Any, _Unit] = {}
        self._buffers: dict[tuple[int, str], _Buffer] = {}
        self._written: set[int] = set()
        self._pools: dict[str, _Pool] = {}
        self._structs: dict[str, str] = {}
        self._own_bytes = 0

    def call(self, phase: Phase, *, must_wait: bool) -> list[int]:
        """Return the row of a phase in the table of calls."""
        record = phase.record
        if record.threads != self._threads:
            raise UnlinkableError(f"{phase.label} has {record.threads} threads")
        unit = self._unit(phase)
        offsets = [0] * MAX_BUFFERS
        for index, (binding, memory) in enumerate(zip(phase.bindings, phase.slices, strict=True)):
            if index in unit.offsets:
                offsets[index] = memory.offset // unit.offsets[index]
            elif memory.offset:
                raise UnlinkableError(f"{binding.name} of {phase.label} is not at offset 0")
        return [unit.number, phase.work.items, phase.work.rows or 0, int(must_wait), *offsets]

    def finish(self, rows: list[list[int]]) -> Linked:
        """Return the module with the calls `rows`."""
        units = list(self._units.values())
        if len(units) > MOST_UNITS:
            raise UnlinkableError(f"it has {len(units)} different phases, at most {MOST_UNITS}")
        step = next((one.name for one in self._buffers.values() if one.type == "Step"), None)
        if step is None:
            raise UnlinkableError("no phase reads the step")
        has_subgroups = any(one.record.has_subgroups for one in units)
        text = FOLDER.render(
            "pass.wgsl",
            THREAD=PHASES.render("snippets/thread.wgsl", SUBGROUPS=has_subgroups),
            STRUCTS="\n".join(self._structs.values()),
            BUFFERS="\n".join(map(self._declared, self._buffers.values())),
            SHARED="\n".join(map(_declared_pool, self._pools.values())),
            UNITS=tuple(
                _UnitText(one.number, one.text, one.call, one.by_rows, tuple(one.offsets))
                for one in units
            ),
            STEP=step,
            SUBGROUPS=has_subgroups,
            WG=self._threads,
            CALLS=len(rows),
            WORDS=CALL_WORDS,
        )
        if any(one.record.source.startswith("enable f16") for one in units):
            text = f"enable f16;\n{text}"
        pooled = sum(one.count * one.element_bytes for one in self._pools.values())
        return Linked(
            text,
            {one.name: one.memory for one in self._buffers.values()},
            np.array(rows, np.uint32),
            pooled + self._own_bytes + OTHER_BYTES,
        )

    def _declared(self, one: _Buffer) -> str:
        # WebGPU allows no mix of read-only and writing bindings of one buffer in a dispatch.
        access = "read_write" if id(one.memory.buffer) in self._written else "read"
        attribute = "@coherent\n" if id(one.memory.buffer) in self._coherent else ""
        return f"{attribute}var<storage, {access}> {one.name}: {one.type};"

    def _unit(self, phase: Phase) -> _Unit:
        record = phase.record
        constants = {"WG": self._threads, **record.constants}
        key = (
            record.source,
            tuple(sorted(constants.items())),
            tuple(id(one.buffer) for one in phase.slices),
            phase.work.rows,
        )
        found = self._units.get(key)
        if found is None:
            names = Names(declarations(record.source), constants)
            by_rows = phase.work.rows is not None
            found = self._units[key] = _Unit(len(self._units), record, by_rows, names)
            self._write(found, phase)
        return found

    def _write(self, unit: _Unit, phase: Phase) -> None:
        """Fill in the texts of a unit, and declare the buffers and arrays that it needs."""
        renaming = Renaming(unit.number, declarations(unit.record.source), unit.names)
        for struct in renaming.shared_structs:
            if self._structs.setdefault(struct.name, struct.text) != struct.text:
                raise UnlinkableError(f"two forms of the struct {struct.name}")
        storage = {one.name: one for one in renaming.declared if one.kind == "storage"}
        for index, (binding, memory) in enumerate(zip(phase.bindings, phase.slices, strict=True)):
            variable = self._buffer(unit.names, storage[binding.name], memory)
            if binding.access is Access.READ_WRITE:
                self._written.add(id(memory.buffer))
            array = unit.names.array(storage[binding.name].type)
            if array is None:
                renaming.plain[binding.name] = variable.name
            else:
                offset = f"at_{unit.number}_{index}"
                renaming.indexed[binding.name] = (variable.name, offset)
                unit.offsets[index] = unit.names.size_of(array.element)
                unit.texts.append(f"var<private> {offset}: u32;")
        self._overlay(unit, renaming)
        unit.texts += map(renaming.text, renaming.own)

    def _buffer(self, names: Names, one: Declaration, memory: BufferSlice) -> _Buffer:
        array = names.array(one.type)
        type_ = names.resolved(one.type) if array is None else f"array<{array.element}>"
        key = (id(memory.buffer), type_)
        if key not in self._buffers:
            whole = BufferSlice(memory.buffer, 0, memory.buffer.size)
            self._buffers[key] = _Buffer(f"buffer_{len(self._buffers)}", type_, whole)
        return self._buffers[key]

    def _overlay(self, unit: _Unit, renaming: Renaming) -> None:
        """Lay the arrays of a unit in workgroup memory over those of the others."""
        ends: dict[str, int] = {}
        for one in renaming.declared:
            if one.kind != "workgroup":
                continue
            array = unit.names.array(one.type)
            own_structs = {struct.name for struct in renaming.own if struct.kind == "struct"}
            if array is None or array.count is None or array.element in own_structs:
                unit.texts.append(renaming.renamed(one.text))
                if array is not None and array.count is not None:
                    size = unit.names.size_of(array.element)
                    self._own_bytes += size * unit.names.evaluate(array.count)
                continue
            pool = self._pool(unit.names, array.element)
            first = ends.get(array.element, 0)
            ends[array.element] = first + unit.names.evaluate(array.count)
            pool.count = max(pool.count, ends[array.element])
            renaming.indexed[one.name] = (pool.name, f"{first}u" if first else "")

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
    offsets: tuple[int, ...]


def _declared_pool(pool: _Pool) -> str:
    return f"var<workgroup> {pool.name}: array<{pool.element}, {max(pool.count, 1)}>;"
