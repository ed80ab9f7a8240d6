"""A copy of a buffer: the yardstick of memory bandwidth."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.shaders import kernel

WORKGROUP = 256
MAX_GROUPS = 16_384


def copy(x: BufferSlice, y: BufferSlice, *, label: str) -> list[Dispatch]:
    """y = x.

    Args:
        x: Any values, a multiple of 16 bytes.
        y: As large; another buffer than x.
        label: What the op is.

    Raises:
        FormatError: Sizes that do not suit.
    """
    if x.size % 16 or y.size != x.size:
        raise FormatError(
            f"{label}: buffers do not suit a copy",
            expected=f"{x.size // 16 * 16} bytes in both",
            found=f"{x.size} and {y.size}",
        )
    words = x.size // 16
    what = kernel("copy", constants={"WG": WORKGROUP, "WORDS": words}, trusted=True)
    groups = min(MAX_GROUPS, -(-words // WORKGROUP))
    return [dispatch(what, {"x": x, "y": y}, Grid(groups), label)]
