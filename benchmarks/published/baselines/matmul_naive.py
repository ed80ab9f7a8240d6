"""The naive matrix product, one output per thread: the baseline of tiled products.

With one token row it is the product of a published system for column-major matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Work, choice

from published.baselines.baseline_kernel import BaselineKernel
from published.baselines.weights import StoredWeight

WEIGHT_BYTES = {"F32": 4, "F16": 2}
SQUARE, LINE = (8, 8), (256, 1)
"""Threads of a workgroup along outputs and along token rows, for many rows and for one."""


@dataclass(frozen=True, kw_only=True)
class MatmulNaive(BaselineKernel):
    """Parameters of matmul_naive.wgsl.

    Attributes:
        weight: Storage type of the weights, `f32` or `f16`.
        k: Number of inputs.
        n: Number of outputs.
        row: Weights per stored row, including padding.
        column: Whether the matrix is column-major.
        wide: Threads along the outputs.
    """

    shader = "matmul_naive"

    weight: str = choice()
    k: int
    n: int
    row: int
    column: bool
    wide: int


def matmul_naive(
    ctx: OpContext, weight: StoredWeight, x: BufferSlice, y: BufferSlice, *, label: str
) -> list[Phase]:
    """Return the phase of y[rows, N] = x[rows, K] W[N, K]^T, summed in f32.

    Args:
        ctx: Context of the step.
        weight: Matrix in F32 or F16.
        x: f32 [rows, K].
        y: f32 [rows, N]; a different buffer than x.
        label: Name in messages and profiles.

    Raises:
        FormatError: The matrix is neither F32 nor F16, or a buffer is too small.
    """
    size = WEIGHT_BYTES.get(weight.dtype)
    if size is None:
        raise FormatError(
            f"{label}: the naive product cannot read the weights",
            expected="F32 or F16",
            found=weight.dtype,
        )
    need_floats(f"{label}: x", x, ctx.max_rows * weight.k)
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    wide, high = SQUARE if ctx.max_rows > 1 else LINE
    record = MatmulNaive(
        threads=wide * high,
        weight=weight.dtype.lower(),
        k=weight.k,
        n=weight.n,
        row=weight.row_bytes // size,
        column=weight.layout is Layout.COLUMN,
        wide=wide,
    )
    buffers = {"current": ctx.state.step, "x": x, "weight": weight.words, "y": y}
    return [Phase(record, buffers, Work(-(-weight.n // wide), rows=high), label)]
