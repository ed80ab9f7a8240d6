"""Kernels, workgroup counts and dispatches, as plain values.

Nothing in this module touches a device. `Device.bind` turns a `Dispatch` into GPU objects once, and
a program can then run the bound form any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_format.errors import DeviceError

from rdrr_device.buffers import BufferSlice
from rdrr_device.shaders import Binding
from rdrr_device.tuning import AnyTuningKey

MAX_WORKGROUPS = 65_535
"""Most workgroups in one dimension of a dispatch, on every WebGPU device."""


@dataclass(frozen=True)
class Kernel:
    """The description of a compute pipeline; equal descriptions share one pipeline.

    Attributes:
        label: Name for messages, traces and profiles, e.g. `gemv_row.q4_k`.
        source: Rendered WGSL.
        entry: Name of the entry point.
        overrides: Values of the override constants, sorted by name.
        bindings: Storage buffers in binding order.
        trusted: Whether the shader checks every index and bounds every loop itself, so that the
            compiler's runtime checks can be omitted.
        general: Whether the shader is about as fast if it reads its constants from memory, so that
            on a software adapter kernels that differ only in them share one.
    """

    label: str
    source: str
    entry: str
    overrides: tuple[tuple[str, float | int], ...]
    bindings: tuple[Binding, ...]
    trusted: bool = False
    general: bool = False


@dataclass(frozen=True)
class Work:
    """The number of workgroups of a dispatch: one for each item and each group of token rows.

    Attributes:
        items: Items, a number that does not depend on the token rows of the pass.
        rows: Token rows that one workgroup processes; None if the number of workgroups does not
            depend on the token rows.
        most_rows: Largest number of token rows to launch for, where a part of a pass has fewer rows
            than the rest; None for those of the pass.
        above: The dispatch is left out of passes with this number of token rows or fewer.
        up_to: The dispatch is left out of passes of more token rows; None for no limit.
    """

    items: int = 1
    rows: int | None = None
    most_rows: int | None = None
    above: int = 0
    up_to: int | None = None

    def serves(self, rows: int) -> bool:
        """Return whether a pass over `rows` token rows includes the dispatch."""
        return self.above < rows and (self.up_to is None or rows <= self.up_to)

    def count(self, rows: int) -> int:
        """Return the number of workgroups for a pass over `rows` token rows."""
        return self.items * self._groups(rows)

    def counts(self, rows: int) -> tuple[int, int, int]:
        """Return the number of workgroups along x and y (items) and z (groups of token rows).

        Raises:
            DeviceError: A number exceeds `MAX_WORKGROUPS`.
        """
        y, z = -(-self.items // MAX_WORKGROUPS), self._groups(rows)
        if max(y, z) > MAX_WORKGROUPS:
            raise DeviceError(
                "the dispatch is too large",
                expected=f"at most {MAX_WORKGROUPS} workgroups in a dimension",
                found=(y, z),
                hint="use a smaller prefill chunk",
            )
        return -(-self.items // y), y, z

    def _groups(self, rows: int) -> int:
        if self.rows is None:
            return 1
        return -(-(rows if self.most_rows is None else min(rows, self.most_rows)) // self.rows)


@dataclass(frozen=True)
class Dispatch:
    """One launch of a kernel on given buffers.

    Attributes:
        kernel: The kernel to run.
        buffers: One slice for each of the kernel's bindings.
        work: The number of workgroups.
        label: The part of the model that it computes, e.g. `layers.3.q_proj`.
        tuning_keys: Tuning keys that it depends on, its own first.
    """

    kernel: Kernel
    buffers: tuple[BufferSlice, ...]
    work: Work
    label: str
    tuning_keys: tuple[AnyTuningKey, ...] = ()
