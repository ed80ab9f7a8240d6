"""The context that every op is lowered in: the state of the step and the limits of the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rdrr_device.buffers import BufferSlice
from rdrr_device.capabilities import INT8_DOT, Capabilities
from rdrr_device.tuning import P, Tuning, TuningKey, Workgroup
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.generation_state import State

VALUE_BYTES: Mapping[str, int] = MappingProxyType({"f32": 4, "f16": 2})


@dataclass(frozen=True)
class Grid:
    """The workgroups of a pass that runs in a single dispatch.

    Attributes:
        threads: Threads of every workgroup, a power of two; all phases of the pass share it.
        groups: Number of workgroups, all of which are resident on the device together.
    """

    threads: int
    groups: int


@dataclass(frozen=True)
class OpContext:
    """What lowering an op needs to know besides the op's own operands.

    Attributes:
        state: Buffers of the step.
        max_rows: Most token rows of a pass; the choice of kernels depends on it.
        capabilities: What the device can do.
        values: Type of the activations between ops, `f32` or `f16`. Logits, sums and norm weights
            are always f32.
        tuning: Stored tuning parameters of kernels.
        multi_sequence: Whether the rows of a pass may belong to different sequences (a slot mapping
            gives the sequence and KV slot of each row).
        grid: The workgroups that all phases of the pass share; None if each phase is launched by
            itself.
    """

    state: State
    max_rows: int
    capabilities: Capabilities = field(default_factory=Capabilities)
    values: str = "f32"
    tuning: Tuning = field(default_factory=Tuning)
    multi_sequence: bool = False
    grid: Grid | None = None

    @property
    def grid_threads(self) -> int | None:
        """Threads of a workgroup of the grid; None without one."""
        return None if self.grid is None else self.grid.threads

    def threads(self, default: int) -> int:
        """Return the threads of a workgroup: those of the grid, or else a phase's own number."""
        return self.grid_threads or default

    @property
    def subgroups(self) -> bool:
        """Whether kernels may use subgroup operations."""
        return "subgroup" in self.capabilities.features

    @property
    def int8_dots(self) -> bool:
        """Whether kernels may multiply signed bytes, four at a time."""
        return INT8_DOT in self.capabilities.language

    @property
    def software(self) -> bool:
        """Whether the adapter is a software one, whose subgroups are narrow."""
        return self.capabilities.software

    @property
    def workgroup_storage(self) -> int:
        """Bytes of workgroup memory that a kernel may use."""
        return self.capabilities.limit("max-compute-workgroup-storage-size")

    @property
    def max_threads(self) -> int:
        """Most threads of a workgroup."""
        return self.capabilities.limit("max-compute-invocations-per-workgroup")

    def without_subgroups(self) -> OpContext:
        """Return this context with subgroup operations disabled."""
        return replace(self, capabilities=self.capabilities.without("subgroup"))

    def for_one_row(self) -> OpContext:
        """Return this context for an op that runs on one row, however many rows the pass has."""
        return replace(self, max_rows=1)

    @property
    def value_bytes(self) -> int:
        """Bytes of one activation value."""
        return VALUE_BYTES[self.values]

    def tuning_key(self, what: str, default: P, candidates: Iterable[P]) -> TuningKey[P]:
        """Return the tuning key of a kernel on a shape, with the parameters to use.

        With a grid the field `workgroup` of the default becomes the number of its threads, and
        other candidates are left out, so tuned parameters count only if they have as many.

        Args:
            what: Op, kernel and shape; identifies the key in a tuned profile.
            default: Parameters to use if the profile has none.
            candidates: Parameters that can run on this device; `rdrr tune` measures them.
        """
        subgroups = "" if self.subgroups else " without subgroups"
        name = f"{what} {self.values}{subgroups}"
        if self.grid is not None and hasattr(default, "workgroup"):
            threads = {"workgroup": self.grid.threads}
            default = replace(default, **threads)
            candidates = (
                candidate
                for candidate in candidates
                if threads.items() <= candidate.as_dict().items()
            )
        return self.tuning.tuning_key(name, default, candidates)

    def workgroup_key(self, what: str, default: int, sizes: Iterable[int]) -> TuningKey[Workgroup]:
        """Return the tuning key of a kernel whose workgroups may have several numbers of threads.

        Args:
            what: See `tuning_key`.
            default: Threads to use if the profile has none.
            sizes: Numbers of threads that the kernel can run with, if the device has as many.
        """
        candidates = (Workgroup(size) for size in sizes if size <= self.max_threads)
        return self.tuning_key(what, Workgroup(default), candidates)

    def need_values(self, what: str, buffer: BufferSlice, count: int) -> None:
        """Check that a buffer holds `count` activation values.

        Args:
            what: Name of the operand, for the message.
            buffer: The slice to check.
            count: Number of values of type `values`.

        Raises:
            FormatError: The buffer is too small.
        """
        size = self.value_bytes * count
        if buffer.size < size:
            raise FormatError(
                f"the buffer of {what} is too small", expected=f"{size} bytes", found=buffer.size
            )


def need_multiple(what: str, value: int, of: int) -> None:
    """Check that a size is one that the kernel supports.

    Raises:
        FormatError: `value` is not a positive multiple of `of`.
    """
    if value <= 0 or value % of:
        raise FormatError(
            f"the kernel does not support the size of {what}",
            expected=f"a multiple of {of}",
            found=value,
        )


def need_floats(what: str, buffer: BufferSlice, count: int) -> None:
    """Check that a buffer holds `count` 32-bit values.

    Raises:
        FormatError: The buffer is too small.
    """
    if buffer.size < 4 * count:
        raise FormatError(
            f"the buffer of {what} is too small", expected=f"{4 * count} bytes", found=buffer.size
        )


def power_of_two(value: int, low: int, high: int) -> int:
    """Return the smallest power of two that is at least `value`, clamped to [low, high].

    `low` and `high` are powers of two.
    """
    return min(high, max(low, 1 << (max(1, value) - 1).bit_length()))
