"""What every op needs besides its own operands: where it runs, and with which rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import P, Tuning, TuningKey
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.state import State

VALUE_BYTES: Mapping[str, int] = MappingProxyType({"f32": 4, "f16": 2})


@dataclass(frozen=True)
class OpContext:
    """Where ops are lowered to.

    Attributes:
        state: Buffers of the step.
        max_rows: Most token rows of a pass; decides which kernels suit.
        features: WebGPU features that the device has (`Device.features`).
        workgroup_storage: Bytes of workgroup memory a kernel may use.
        max_threads: Threads a workgroup may have.
        values: Type of the activations between ops, `f32` or `f16`. Logits, sums and the weights
            of norms are f32 in any case.
        tuning: Stored parameters of kernels.
        software: Whether the adapter is the CPU in disguise, whose subgroups are narrow.
        mapped: Whether the rows of a pass may be of different sequences.
    """

    state: State
    max_rows: int
    features: frozenset[str] = frozenset()
    workgroup_storage: int = 16_384
    max_threads: int = 256
    values: str = "f32"
    tuning: Tuning = field(default_factory=Tuning)
    software: bool = False
    mapped: bool = False

    @property
    def subgroups(self) -> bool:
        """Whether kernels may use subgroup operations."""
        return "subgroup" in self.features

    def without_subgroups(self) -> OpContext:
        """Return the context of kernels that are to do without subgroups."""
        return replace(self, features=self.features - {"subgroup"})

    def for_one_row(self) -> OpContext:
        """Return the context of what runs on one row, whatever rows the pass has."""
        return replace(self, max_rows=1)

    @property
    def value_bytes(self) -> int:
        """Bytes of an activation."""
        return VALUE_BYTES[self.values]

    def tuning_key(self, what: str, default: P, candidates: Iterable[P]) -> TuningKey[P]:
        """The parameters of a kernel on a shape.

        Args:
            what: Op, kernel and shape.
            default: Where nothing is stored.
            candidates: Parameters that can run here.
        """
        subgroups = "" if self.subgroups else " without subgroups"
        return self.tuning.tuning_key(f"{what} {self.values}{subgroups}", default, candidates)

    def need_values(self, what: str, buffer: BufferSlice, count: int) -> None:
        """Guard of an activation's size.

        Raises:
            FormatError: The slice holds fewer than `count` of them.
        """
        size = self.value_bytes * count
        if buffer.size < size:
            raise FormatError(
                f"buffer of {what} is too small", expected=f"{size} bytes", found=buffer.size
            )


def need_multiple(what: str, value: int, of: int) -> None:
    """Guard of a kernel's size.

    Raises:
        FormatError: `value` is not a positive multiple of `of`.
    """
    if value <= 0 or value % of:
        raise FormatError(
            f"{what} does not suit the kernel", expected=f"a multiple of {of}", found=value
        )


def need_floats(what: str, buffer: BufferSlice, count: int) -> None:
    """Guard of an operand's size.

    Raises:
        FormatError: The slice holds fewer than `count` 32-bit values.
    """
    if buffer.size < 4 * count:
        raise FormatError(
            f"buffer of {what} is too small", expected=f"{4 * count} bytes", found=buffer.size
        )
