"""Units: the functions of a module, and the offsets that tell their calls apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from rdrr_runtime.exec.persistent.declarations import Names, UnlinkableError
from rdrr_runtime.exec.persistent.handover import WORD_BYTES, Slots
from rdrr_runtime.phases.launch import parameters
from rdrr_runtime.phases.phase import MAX_BUFFERS, Phase, Record

MOST_OFFSETS = MAX_BUFFERS + 4
"""Most offsets of a call. A value that is read and written in place has two."""


@dataclass(frozen=True)
class Offset:
    """Where the operand of a call begins, in elements.

    Attributes:
        variable: The module's variable that holds it.
        binding: Name of the operand's binding.
        bytes: Bytes of an element.
        handed: Whether the value is handed over; otherwise it is in memory.
        written: Whether this is where a value that is handed over is written.
    """

    variable: str
    binding: str
    bytes: int
    handed: bool = False
    written: bool = False

    @property
    def words(self) -> int:
        """Words of an element of a value that is handed over; 0 for memory."""
        return self.bytes // WORD_BYTES if self.handed else 0

    def of(self, phase: Phase, slots: Slots) -> int:
        """Return the offset of a phase's call."""
        if not self.handed:
            return phase.buffers[self.binding].offset // self.bytes
        first = (slots.writes if self.written else slots.reads)[self.binding]
        return first // self.words


@dataclass
class Unit:
    """A phase's function in the module.

    Attributes:
        number: Suffix of its names.
        record: Shader and constants.
        by_rows: Whether the function is called for each group of token rows.
        names: Constants and types of the shader.
        loops: Whether a workgroup may make several of a phase's calls.
        offsets: The offsets that each call has.
        texts: Declarations with the names of the module.
    """

    number: int
    record: Record
    by_rows: bool
    names: Names
    loops: bool = False
    offsets: list[Offset] = field(default_factory=list)
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
        given = ("0u" if name in zero else name for name in parameters(self.record.source))
        return f"phase_{self.number}({', '.join(given)})"

    def add(self, offset: Offset) -> str:
        """Add an offset, and return the module's variable."""
        self.offsets.append(offset)
        self.texts.append(f"var<private> {offset.variable}: u32;")
        return offset.variable

    def offsets_of(self, phase: Phase, slots: Slots) -> list[int]:
        """Return the offsets of a phase's call, `MOST_OFFSETS` numbers.

        Raises:
            UnlinkableError: An operand cannot have an offset, or there are too many.
        """
        given = {offset.binding for offset in self.offsets}
        for name, memory in phase.buffers.items():
            if memory.offset and name not in given:
                raise UnlinkableError(f"{name} of {phase.label} is not at offset 0")
        if len(self.offsets) > MOST_OFFSETS:
            raise UnlinkableError(f"{phase.label} has {len(self.offsets)} offsets")
        offsets = [offset.of(phase, slots) for offset in self.offsets]
        return offsets + [0] * (MOST_OFFSETS - len(offsets))
