"""A phase: one WGSL function with typed parameters, and the buffers that it reads and writes.

A pass over the model is a list of phases. Phases are plain data on the host that can be printed,
counted and compared; nothing in this module touches a device. An executor launches them
(`rdrr_runtime.phases.launch`, `rdrr_runtime.exec.executor`), and a phase does not depend on how it
is launched. It only defines the function

    fn phase(item: u32, row: u32, thread: Thread, subgroup_size: u32)

which all threads of one workgroup call in uniform control flow, once for each item of its `Work`.
The function declares only those of the four parameters that it uses. `item` runs from 0 to
`Work.items` - 1 and `row` is the first token row of the call. The executor declares `Thread` and
`WG`, the number of threads of a workgroup, and numbers the bindings of the storage buffers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Work
from rdrr_device.shaders import Access, Binding, ShaderFolder, overrides, storage_bindings
from rdrr_device.tuning import AnyTuningKey

from rdrr_runtime.records import SAMPLER

__all__ = ["FOLDER", "MAX_BUFFERS", "Number", "Phase", "Record", "Work", "choice"]

FOLDER = ShaderFolder("rdrr_runtime.phases", (("SAMPLER", SAMPLER.declaration),))
"""Template folder with the WGSL files of this package and its parts, and with their snippets."""

MAX_BUFFERS = 8
"""Most storage buffers of a phase: the number that every WebGPU device can bind."""

Number = float | int | bool


def choice(default: Any = MISSING) -> Any:
    """Declare a field of a `Record` as a template variable instead of an override constant."""
    return field(default=default, metadata={"is_choice": True})


@dataclass(frozen=True, kw_only=True)
class Record:
    """The typed parameters of a WGSL function; a subclass names the shader and adds fields.

    Each field becomes an override constant of the shader with the same name in capitals. A tuple
    becomes one constant for each element, with the index of the element as suffix. Each field of a
    nested dataclass becomes a constant of its own. None declares no constant. A field declared with
    `choice` becomes a variable of the shader's template instead.

    A subclass documents its fields, except those whose meaning stands beside their constant in the
    shader or in the spec or the tuning parameters from which they come, and two that mean this
    unless it says otherwise: `value`, the type of the activations, `f32` or `f16`, and `subgroups`,
    whether reductions use subgroup operations.

    Attributes:
        shader: Path of the shader in `folder` without the suffix, e.g. `products/matvec`.
        folder: Template folder of the shader.
        trusted: The function guards every index and bounds every loop itself, so the runtime checks
            that the shader compiler inserts may be omitted.
        general: See `Kernel.general`.
        threads: Threads of a workgroup, the constant `WG`.
        variant: Suffix of the shader's name in explanations and profiles.
    """

    shader: ClassVar[str]
    folder: ClassVar[ShaderFolder] = FOLDER
    trusted: ClassVar[bool] = False
    general: ClassVar[bool] = False

    threads: int
    variant: str = ""

    @property
    def fills(self) -> bool:
        """Whether each call writes all of its outputs, or all that later phases read of them.

        Of a pass of several rows these are the rows of the step, and it reads no others.
        """
        return False

    @property
    def name(self) -> str:
        """Name of the kernel in explanations and profiles, e.g. `matvec.q4_k.norm.store`."""
        function = self.shader.rpartition("/")[2]
        return f"{function}.{self.variant}" if self.variant else function

    @property
    def has_subgroups(self) -> bool:
        """Whether the function uses subgroup operations."""
        return bool(self.choices.get("SUBGROUPS", False))

    @cached_property
    def choices(self) -> dict[str, Hashable]:
        """Variables of the shader's template."""
        return {name.upper(): getattr(self, name) for name in self._parameters(chosen=True)}

    @cached_property
    def constants(self) -> dict[str, Number]:
        """Override constants of the shader, without `WG`."""
        constants: dict[str, Number] = {}
        for name in self._parameters(chosen=False):
            constants |= _constants(name, getattr(self, name))
        return constants

    @cached_property
    def source(self) -> str:
        """WGSL of the function, rendered with `choices`."""
        return self.folder.render(f"{self.shader}.wgsl", **self.choices)

    @classmethod
    @cache
    def _parameters(cls, *, chosen: bool) -> tuple[str, ...]:
        """Return the names of the template variables, or of the override constants."""
        return tuple(
            attr.name
            for attr in fields(cls)
            if attr.name not in ("threads", "variant")
            and bool(attr.metadata.get("is_choice", False)) is chosen
        )


def _constants(name: str, value: Any, suffix: str = "") -> dict[str, Number]:
    if value is None:
        return {}
    if isinstance(value, tuple):
        parts = [_constants(name, element, f"{suffix}{at}") for at, element in enumerate(value)]
    elif is_dataclass(value):
        parts = [_constants(attr.name, getattr(value, attr.name), suffix) for attr in fields(value)]
    else:
        return {f"{name.upper()}{suffix}": value}
    return {key: number for part in parts for key, number in part.items()}


@lru_cache(maxsize=1024)
def _shared(record: Record, text: str) -> Record:
    """Return the first record that equals this one and has the same `repr`.

    Layers have the same records, whose source and constants are then computed once. The text tells
    1, 1.0 and True apart, which are equal, but not the same in a shader or a program.
    """
    del text
    return record


@dataclass(frozen=True)
class Phase:
    """One kernel call of a pass: a function with its parameters and buffers.

    Attributes:
        record: Shader function and its parameters.
        buffers: Storage buffers by the names under which the shader declares them.
        work: How many times the function is called.
        label: Name of the op that it computes, e.g. `layers.3.q_proj`.
        tuning_keys: Tuning keys that the phase depends on, its own key first.
    """

    record: Record
    buffers: Mapping[str, BufferSlice]
    work: Work
    label: str
    tuning_keys: tuple[AnyTuningKey, ...] = ()

    def __post_init__(self) -> None:
        """Check that the buffers and constants are exactly those that the shader declares.

        Raises:
            ValueError: A name is missing or not declared, or there are too many buffers.
        """
        record = _shared(self.record, repr(self.record))
        object.__setattr__(self, "record", record)
        declared = {binding.name for binding in self.bindings}
        if declared != set(self.buffers):
            raise ValueError(f"{record.name} binds {sorted(declared)}, not {sorted(self.buffers)}")
        if len(declared) > MAX_BUFFERS:
            raise ValueError(f"{record.name} binds {len(declared)} buffers, at most {MAX_BUFFERS}")
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
        """Storage bindings in the order in which the shader declares them."""
        return storage_bindings(self.record.source)

    @property
    def slices(self) -> tuple[BufferSlice, ...]:
        """Buffers in the order of `bindings`."""
        return tuple(self.buffers[binding.name] for binding in self.bindings)

    def as_data(self) -> dict[str, Any]:
        """Return the phase as JSON values, which `rdrr explain --phases --json` prints."""
        return {
            "op": self.label,
            "function": self.name,
            "threads": self.record.threads,
            "choices": {name: _plain(choice) for name, choice in self.record.choices.items()},
            "constants": dict(self.record.constants),
            "work": _work(self.work),
            "buffers": [
                {
                    "name": binding.name,
                    "writes": binding.access is Access.READ_WRITE,
                    "buffer": getattr(memory.buffer, "label", None),
                    "offset": memory.offset,
                    "size": memory.size,
                }
                for binding, memory in zip(self.bindings, self.slices, strict=True)
            ],
        }


def _work(work: Work) -> dict[str, int | None]:
    limits = {"most_rows": work.most_rows, "above": work.above or None, "up_to": work.up_to}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    return {"items": work.items, "rows": work.rows, **given}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
