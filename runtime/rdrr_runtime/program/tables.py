"""The tables of a program under construction, whose entries its other parts name by index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Generic, TypeVar

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Kernel
from rdrr_device.shaders import Binding, WgslCompiler, for_compiler

from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase as PlannedPhase
from rdrr_runtime.program import dispatches, schema

K = TypeVar("K")
V = TypeVar("V")


class Table(Generic[K, V]):
    """Entries that other parts of a program name by index, in order of first use."""

    def __init__(self) -> None:
        self.entries: list[V] = []
        self._indices: dict[K, int] = {}

    def index(self, key: K, new: Callable[[], V]) -> int:
        """Return the index of an entry, which is appended if it is new."""
        if key not in self._indices:
            entry = new()
            self._indices[key] = len(self.entries)
            self.entries.append(entry)
        return self._indices[key]

    def __contains__(self, key: K) -> bool:
        """Return whether there is an entry of this key."""
        return key in self._indices


class Tables:
    """The tables of a program under construction.

    Args:
        roles: Role of each buffer, by its id; others hold values.

    Attributes:
        shaders: WGSL by hash.
        kernels: Kernels.
        buffers: Buffers, by their ids: two stand-ins of the same size and label are equal.
        ranges: Ranges of buffers.
    """

    def __init__(self, roles: Mapping[int, schema.Role]) -> None:
        self.shaders: dict[str, str] = {}
        self.kernels = Table[Kernel, schema.Kernel]()
        self.buffers = Table[int, schema.Buffer]()
        self.ranges = Table[tuple[int, int, int], schema.Range]()
        self._roles = roles

    def range(self, part: BufferSlice) -> int:
        """Return the index of a range."""
        key = (id(part.buffer), part.offset, part.size)
        return self.ranges.index(key, lambda: self._range(part))

    def kernel(self, kernel: Kernel) -> int:
        """Return the index of a kernel."""
        return self.kernels.index(kernel, lambda: self._kernel(kernel))

    def phases(self, phases: Sequence[PlannedPhase]) -> tuple[dispatches.Phase, ...]:
        """Return the statements of phases."""
        return tuple(self.phase(phase) for phase in phases)

    def phase(self, phase: PlannedPhase) -> dispatches.Phase:
        """Return the statement of a phase."""
        dispatch = as_dispatch(phase)
        work = dispatch.work
        return dispatches.Phase(
            kernel=self.kernel(dispatch.kernel),
            ranges=tuple(self.range(part) for part in dispatch.buffers),
            work=dispatches.Work(
                items=work.items,
                per=work.rows,
                most_rows=work.most_rows,
                above=work.above,
                up_to=work.up_to,
            ),
        )

    def holds(self, part: BufferSlice) -> bool:
        """Return whether something names a range of the buffer of a slice."""
        return id(part.buffer) in self.buffers

    def _range(self, part: BufferSlice) -> schema.Range:
        key = id(part.buffer)
        role = self._roles.get(key, "value")
        buffer = self.buffers.index(key, lambda: schema.Buffer(size=part.buffer.size, role=role))
        return schema.Range(buffer=buffer, offset=part.offset, size=part.size)

    def _kernel(self, kernel: Kernel) -> schema.Kernel:
        text = for_compiler(kernel.source, WgslCompiler.TINT)
        name = sha256(text.encode()).hexdigest()
        self.shaders[name] = text
        return schema.Kernel(
            label=kernel.label,
            shader=name,
            entry=kernel.entry,
            constants={name: _integer(value) for name, value in kernel.overrides},
            bindings=tuple(_binding(binding) for binding in kernel.bindings),
            trusted=kernel.trusted,
            general=kernel.general,
        )


def _binding(binding: Binding) -> schema.Binding:
    facts = {"name": binding.name, "access": binding.access.value}
    return schema.Binding.model_validate(facts)


def _integer(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value
