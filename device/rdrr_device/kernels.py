"""What a kernel is, how large its launch is, and a launch with its buffers.

All three are plain values made on the host: nothing here touches a device. `Device.bind` turns a
`Dispatch` into GPU objects once; a program replays the bound form.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_format.errors import DeviceError

from rdrr_device.buffers import BufferSlice
from rdrr_device.shaders import Binding
from rdrr_device.tuning import AnyTuningKey

MAX_WORKGROUPS = 65_535  # of one dimension of a launch, on every WebGPU device


@dataclass(frozen=True)
class Kernel:
    """A compute pipeline's recipe; equal recipes share one pipeline.

    Attributes:
        label: Name for messages, traces and profiles, e.g. `gemv_row.q4_k`.
        source: Rendered WGSL.
        entry: Entry point.
        overrides: Values of override constants, sorted by name.
        bindings: Storage buffers in binding order.
        trusted: The shader guards every index and bounds every loop by itself, so the compiler's
            runtime checks may be left out.
    """

    label: str
    source: str
    entry: str
    overrides: tuple[tuple[str, float | int], ...]
    bindings: tuple[Binding, ...]
    trusted: bool = False


@dataclass(frozen=True)
class Work:
    """How many workgroups a launch has: one for each item, or for each item and some token rows.

    Attributes:
        items: Items that do not depend on the token rows of the pass.
        rows: Token rows that a workgroup takes; None where the items are all there is.
    """

    items: int = 1
    rows: int | None = None

    def count(self, rows: int) -> int:
        """Return the workgroups of a pass over `rows` token rows."""
        return self.items * self._groups(rows)

    def counts(self, rows: int) -> tuple[int, int, int]:
        """Return the workgroups along x and y (items) and z (token rows).

        Raises:
            DeviceError: A count beyond what WebGPU can launch.
        """
        y, z = -(-self.items // MAX_WORKGROUPS), self._groups(rows)
        if max(y, z) > MAX_WORKGROUPS:
            raise DeviceError(
                "launch too large",
                expected=f"at most {MAX_WORKGROUPS} workgroups in a dimension",
                found=(y, z),
                hint="use a smaller prefill chunk",
            )
        return -(-self.items // y), y, z

    def _groups(self, rows: int) -> int:
        return 1 if self.rows is None else -(-rows // self.rows)


@dataclass(frozen=True)
class Dispatch:
    """One launch of a kernel on given buffers.

    Attributes:
        kernel: What runs.
        buffers: One slice for each of the kernel's bindings.
        work: How many workgroups it has.
        label: What it serves, e.g. `layers.3.q_proj`.
        tuning_keys: Choices of parameters that it depends on, its own first.
    """

    kernel: Kernel
    buffers: tuple[BufferSlice, ...]
    work: Work
    label: str
    tuning_keys: tuple[AnyTuningKey, ...] = ()
