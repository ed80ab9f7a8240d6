"""Products with 4-bit codes that have a scale and a zero point for each group, unpacked on the fly.

The format of systems that are measured here, not one of packages; no graph is lowered to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, dispatch, flat_grid

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import power_of_two

F32 = npt.NDArray[np.float32]
OUTPUTS = 4  # of a workgroup


@dataclass(frozen=True)
class Int4Weight:
    """A matrix [N, K] of 4-bit codes in GPU memory.

    Attributes:
        n: Outputs.
        k: Inputs, a multiple of the group.
        group: Codes that share a scale and a zero point, a multiple of 8.
        codes: u32 [N, K / 8].
        scales: f32 [N, K / group, 2], scale and zero point.
    """

    n: int
    k: int
    group: int
    codes: BufferSlice
    scales: BufferSlice

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        return self.codes.size + self.scales.size


def upload_int4(
    arena: Arena, codes: npt.NDArray[np.uint8], scales: F32, zeros: F32, label: str
) -> Int4Weight:
    """Put a matrix into GPU memory.

    Args:
        arena: Owner of the buffers.
        codes: 0 to 15, uint8 [N, K].
        scales: float32 [N, K / group].
        zeros: Zero points, float32 [N, K / group].
        label: What it is.

    Raises:
        FormatError: A group of no whole words.
    """
    n, k = codes.shape
    group = k // scales.shape[1]
    need_multiple(f"{label}: group", group, 8)
    need_multiple(f"{label}: K", k, group)
    packed = np.ascontiguousarray(codes[:, 0::2] | (codes[:, 1::2] << 4))
    both = np.ascontiguousarray(np.stack([scales, zeros], axis=2), dtype=np.float32)
    return Int4Weight(
        n, k, group, arena.upload(label, packed), arena.upload(f"{label}.scales", both)
    )


def gemv_int4_zp(
    ctx: OpContext, weight: Int4Weight, x: BufferSlice, y: BufferSlice, *, label: str
) -> list[Dispatch]:
    """y[rows, N] = x[rows, K] W[N, K]^T with W = (code - zero) * scale.

    Args:
        ctx: Where it is lowered to.
        weight: The matrix.
        x: f32 [rows, K].
        y: f32 [rows, N]; another buffer than x.
        label: What it is.

    Raises:
        FormatError: A buffer that is too small.
    """
    need_floats(f"{label}: x", x, ctx.max_rows * weight.k)
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    what = kernel(
        "gemv_int4_zp",
        variables={"SUBGROUPS": ctx.subgroups},
        constants={
            "WG": power_of_two(weight.k // 8, 32, 128),
            "K": weight.k,
            "N": weight.n,
            "GROUP": weight.group,
        },
    )
    buffers = {
        "current": ctx.state.step,
        "x": x,
        "weight": weight.codes,
        "weight_scales": weight.scales,
        "y": y,
    }
    return [dispatch(what, buffers, flat_grid(-(-weight.n // OUTPUTS), rows_axis=2), label)]
