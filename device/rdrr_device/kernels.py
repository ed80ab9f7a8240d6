"""What a kernel is, how large its launch is, and a launch with its buffers.

All three are plain values made on the host: nothing here touches a device. `Device.bind` turns a
`Dispatch` into GPU objects once; a program replays the bound form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rdrr_format.errors import DeviceError

from rdrr_device.buffers import BufferSlice
from rdrr_device.shaders import Access, Binding
from rdrr_device.tuning import AnySite

__all__ = ["Access", "Binding", "Dispatch", "Grid", "Kernel", "dispatch", "flat_grid"]

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
class Grid:
    """Workgroups of a launch as a function of the number of token rows.

    Attributes:
        x: Workgroups along x.
        y: Workgroups along y.
        z: Workgroups along z.
        rows_axis: Axis (0, 1 or 2) whose count is that of the token rows; None if none is.
        rows_per_group: Token rows that one workgroup handles.
    """

    x: int = 1
    y: int = 1
    z: int = 1
    rows_axis: int | None = None
    rows_per_group: int = 1

    def counts(self, rows: int) -> tuple[int, int, int]:
        """Workgroups along x, y and z for `rows` token rows.

        Raises:
            DeviceError: A count beyond what WebGPU can launch.
        """
        sizes = [self.x, self.y, self.z]
        if self.rows_axis is not None:
            sizes[self.rows_axis] *= -(-rows // self.rows_per_group)
        if max(sizes) > MAX_WORKGROUPS:
            raise DeviceError(
                "launch too large",
                expected=f"at most {MAX_WORKGROUPS} workgroups in a dimension",
                found=sizes,
                hint="use a smaller prefill chunk",
            )
        return sizes[0], sizes[1], sizes[2]


def flat_grid(groups: int, *, rows_axis: int | None = None, rows_per_group: int = 1) -> Grid:
    """A grid of `groups` workgroups laid over x and y; z is free for token rows.

    The shader's index is `wid.x + wid.y * num_workgroups.x`, and it must leave when that reaches
    its number of groups, since x * y may exceed `groups`.
    """
    y = -(-groups // MAX_WORKGROUPS)
    return Grid(-(-groups // y), y, 1, rows_axis, rows_per_group)


@dataclass(frozen=True)
class Dispatch:
    """One launch of a kernel on given buffers.

    Attributes:
        kernel: What runs.
        buffers: One slice for each of the kernel's bindings.
        grid: Launch size.
        label: What it serves, e.g. `layers.3.q_proj`.
        sites: Choices of parameters that it depends on, its own first.
    """

    kernel: Kernel
    buffers: tuple[BufferSlice, ...]
    grid: Grid
    label: str
    sites: tuple[AnySite, ...] = ()


def dispatch(
    what: Kernel,
    buffers: Mapping[str, BufferSlice],
    grid: Grid,
    label: str,
    sites: tuple[AnySite, ...] = (),
) -> Dispatch:
    """A launch with its buffers given by name.

    Raises:
        ValueError: The names are not exactly those that the shader binds.
    """
    names = [binding.name for binding in what.bindings]
    if set(names) != set(buffers):
        raise ValueError(f"{what.label} binds {names}, not {sorted(buffers)}")
    return Dispatch(what, tuple(buffers[name] for name in names), grid, label, sites)
