"""Matrix products with 4-bit codes that have a scale and a zero point for each group of inputs.

Published systems use this format; no rdrr package does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Work, choice

from published.baselines.baseline_kernel import BaselineKernel

F32 = npt.NDArray[np.float32]
OUTPUTS = 4  # outputs per item


@dataclass(frozen=True, kw_only=True)
class GemvInt4Zp(BaselineKernel):
    """Parameters of gemv_int4_zp.wgsl.

    Attributes:
        subgroups: Whether reductions use subgroup operations.
        k: Number of inputs.
        n: Number of outputs.
        group: Codes that share a scale and a zero point.
    """

    shader = "gemv_int4_zp"

    subgroups: bool = choice()
    k: int
    n: int
    group: int


@dataclass(frozen=True)
class Int4Weight:
    """A matrix [N, K] of 4-bit codes in GPU memory.

    Attributes:
        n: Number of outputs.
        k: Number of inputs, a multiple of `group`.
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
        """Return the bytes of GPU memory."""
        return self.codes.size + self.scales.size


def upload_int4(
    arena: Arena, codes: npt.NDArray[np.uint8], scales: F32, zeros: F32, label: str
) -> Int4Weight:
    """Copy a matrix into GPU memory.

    Args:
        arena: Owner of the buffers.
        codes: Codes from 0 to 15, uint8 [N, K].
        scales: float32 [N, K / group].
        zeros: Zero points, float32 [N, K / group].
        label: Name in messages and profiles.

    Raises:
        FormatError: The group size is not a multiple of 8, or K not a multiple of it.
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
) -> list[Phase]:
    """Return the phase of y[rows, N] = x[rows, K] W[N, K]^T with W = (code - zero) * scale.

    Args:
        ctx: Context of the step.
        weight: The matrix.
        x: f32 [rows, K].
        y: f32 [rows, N]; a different buffer than x.
        label: Name in messages and profiles.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: x", x, ctx.max_rows * weight.k)
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    record = GemvInt4Zp(
        threads=_threads(weight.k // 8),
        subgroups=ctx.subgroups,
        k=weight.k,
        n=weight.n,
        group=weight.group,
    )
    buffers = {"x": x, "weight": weight.codes, "weight_scales": weight.scales, "y": y}
    return [Phase(record, buffers, Work(-(-weight.n // OUTPUTS), rows=1), label)]


def _threads(words: int) -> int:
    """Return the smallest power of two from 32 to 128 that gives each word a thread, or 128."""
    return min(128, max(32, 1 << (words - 1).bit_length()))
