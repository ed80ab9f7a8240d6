"""A phase: one WGSL function with typed parameters, and the buffers that it reads and writes.

A pass is a list of phases. They are plain data, made on the host: they can be printed, counted and
compared, and nothing here touches a device. How a phase is launched is the business of an executor
(`rdrr_runtime.phases.launch`, `rdrr_runtime.exec.executor`); a phase does not know it:

    fn phase(item: u32, row: u32, thread: Thread, subgroup_size: u32)

is called for each item of its `Work` by all threads of one workgroup, in uniform control flow. It
names those of the four parameters that it needs. `item` counts from 0 to `Work.items`, `row` is the
first token row of the item. The executor declares the threads of a workgroup (`WG`) and `Thread`,
and gives the storage buffers their numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Work
from rdrr_device.shaders import Access, Binding, ShaderFolder, overrides, storage_bindings
from rdrr_device.tuning import AnyTuningKey

__all__ = ["FOLDER", "MOST_BUFFERS", "Number", "Phase", "Record", "Work", "choice"]

FOLDER = ShaderFolder("rdrr_runtime.phases")
"""The WGSL of this folder, and the snippets that it includes."""

MOST_BUFFERS = 8
"""Storage buffers of a phase: what every WebGPU device binds."""

Number = float | int | bool


def choice(default: Any = MISSING) -> Any:
    """Return a field of a `Record` that chooses text of the shader instead of a constant."""
    return field(default=default, metadata={"is_choice": True})


@dataclass(frozen=True, kw_only=True)
class Record:
    """The typed parameters of a WGSL function; subclasses name the function and add fields.

    A field is an override constant of the shader, named like it in capitals. A tuple is one for
    each element, numbered from 0; of a dataclass each field is one; None is left out. Fields that
    `choice` makes are variables of the template instead.

    Attributes:
        shader: File name without the suffix.
        folder: Where the file lies.
        trusted: The function guards every index and bounds every loop by itself, so the compiler's
            runtime checks may be left out.
        threads: Threads of a workgroup, the constant `WG`.
        variant: What is added to the name of the shader in explanations and profiles.
    """

    shader: ClassVar[str]
    folder: ClassVar[ShaderFolder] = FOLDER
    trusted: ClassVar[bool] = False

    threads: int
    variant: str = ""

    @property
    def name(self) -> str:
        """The function for explanations and profiles, e.g. `matvec.q4_k.norm.store`."""
        return f"{self.shader}.{self.variant}" if self.variant else self.shader

    @property
    def has_subgroups(self) -> bool:
        """Whether the function uses subgroup operations."""
        return bool(self.choices.get("SUBGROUPS", False))

    @cached_property
    def choices(self) -> dict[str, Hashable]:
        """The variables of the template."""
        return {one.name.upper(): getattr(self, one.name) for one in self._own if _chooses(one)}

    @cached_property
    def constants(self) -> dict[str, Number]:
        """The override constants, without `WG`."""
        found: dict[str, Number] = {}
        for one in self._own:
            if not _chooses(one):
                found |= _constants(one.name, getattr(self, one.name))
        return found

    @cached_property
    def source(self) -> str:
        """The WGSL of the function, with its choices made."""
        return self.folder.render(f"{self.shader}.wgsl", **self.choices)

    @property
    def _own(self) -> tuple[Field[Any], ...]:
        return tuple(one for one in fields(self) if one.name not in ("threads", "variant"))


def _chooses(one: Field[Any]) -> bool:
    return bool(one.metadata.get("is_choice", False))


def _constants(name: str, value: Any, suffix: str = "") -> dict[str, Number]:
    if value is None:
        return {}
    if isinstance(value, tuple):
        parts = [_constants(name, one, f"{suffix}{at}") for at, one in enumerate(value)]
    elif is_dataclass(value):
        parts = [_constants(one.name, getattr(value, one.name), suffix) for one in fields(value)]
    else:
        return {f"{name.upper()}{suffix}": value}
    return {key: number for part in parts for key, number in part.items()}


@dataclass(frozen=True)
class Phase:
    """A function of a pass with its parameters and buffers.

    Attributes:
        record: The function and its parameters.
        buffers: Storage buffers by the names under which the shader declares them.
        work: How many times it is called.
        label: The op that it serves, e.g. `layers.3.q_proj`.
        tuning_keys: Choices of parameters that it depends on, its own first.
    """

    record: Record
    buffers: Mapping[str, BufferSlice]
    work: Work
    label: str
    tuning_keys: tuple[AnyTuningKey, ...] = ()

    def __post_init__(self) -> None:
        """Check that buffers and constants are those that the shader declares.

        Raises:
            ValueError: A name that is missing or not declared, or too many buffers.
        """
        record = self.record
        declared = {one.name for one in self.bindings}
        if declared != set(self.buffers):
            raise ValueError(f"{record.name} binds {sorted(declared)}, not {sorted(self.buffers)}")
        if len(declared) > MOST_BUFFERS:
            raise ValueError(f"{record.name} binds {len(declared)} buffers, not {MOST_BUFFERS}")
        known, needed = overrides(record.source)
        given = set(record.constants)
        if not needed <= given <= known:
            wrong = sorted(given - known) or sorted(needed - given)
            raise ValueError(f"{record.shader}.wgsl and its record differ in {', '.join(wrong)}")

    @property
    def name(self) -> str:
        """See `Record.name`."""
        return self.record.name

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """The storage buffers in the order in which the shader declares them."""
        return storage_bindings(self.record.source)

    @property
    def slices(self) -> tuple[BufferSlice, ...]:
        """The buffers in that order."""
        return tuple(self.buffers[one.name] for one in self.bindings)

    def as_data(self) -> dict[str, Any]:
        """Return the phase as values that JSON can hold."""
        return {
            "op": self.label,
            "function": self.name,
            "threads": self.record.threads,
            "choices": {name: _plain(one) for name, one in self.record.choices.items()},
            "constants": dict(self.record.constants),
            "work": asdict(self.work),
            "buffers": [
                {
                    "name": binding.name,
                    "writes": binding.access is Access.READ_WRITE,
                    "buffer": getattr(one.buffer, "label", None),
                    "offset": one.offset,
                    "size": one.size,
                }
                for binding, one in zip(self.bindings, self.slices, strict=True)
            ],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
