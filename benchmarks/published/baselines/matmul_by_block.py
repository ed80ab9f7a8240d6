"""Matrix products with Q4_K as in a published system: one block of 256 weights per thread."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Work, choice

from published.baselines.baseline_kernel import BaselineKernel
from published.baselines.weights import StoredWeight

BLOCK_BYTES = 144
THREADS = 256
ROWS = 4  # token rows per item, in steps with several rows


@dataclass(frozen=True, kw_only=True)
class MatmulByBlock(BaselineKernel):
    """Parameters of matmul_by_block.wgsl.

    Attributes:
        rows: Token rows per item.
        subgroups: Whether reductions use subgroup operations.
        k: Number of inputs.
        n: Number of outputs.
        blocks: Blocks per stored row.
        row_words: 32-bit words per stored row.
    """

    shader = "matmul_by_block"

    rows: int = choice()
    subgroups: bool = choice()
    k: int
    n: int
    blocks: int
    row_words: int


def matmul_by_block(
    ctx: OpContext, weight: StoredWeight, x: BufferSlice, y: BufferSlice, *, label: str
) -> list[Phase]:
    """Return the phase of y[rows, N] = x[rows, K] W[N, K]^T.

    Args:
        ctx: Context of the step.
        weight: Row-major matrix in Q4_K.
        x: f32 [rows, K].
        y: f32 [rows, N]; a different buffer than x.
        label: Name in messages and profiles.

    Raises:
        FormatError: The matrix is not Q4_K and row-major, K is not a multiple of 4, or a buffer is
            too small.
    """
    if weight.dtype != "Q4_K" or weight.layout is not Layout.ROW:
        raise FormatError(
            f"{label}: the kernel with one block per thread cannot read the matrix",
            expected="Q4_K, row-major",
            found=f"{weight.dtype}, {weight.layout.value}",
        )
    need_multiple(f"{label}: K", weight.k, 4)
    need_floats(f"{label}: x", x, ctx.max_rows * weight.k)
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    rows = ROWS if ctx.max_rows > 1 else 1
    record = MatmulByBlock(
        threads=THREADS,
        rows=rows,
        subgroups=ctx.subgroups,
        k=weight.k,
        n=weight.n,
        blocks=weight.row_bytes // BLOCK_BYTES,
        row_words=weight.row_bytes // 4,
    )
    buffers = {"current": ctx.state.step, "x": x, "weight": weight.words, "y": y}
    return [Phase(record, buffers, Work(weight.n, rows), label)]
