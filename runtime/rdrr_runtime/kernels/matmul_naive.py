"""The plainest matrix product, one output a thread: what tiled products are measured against.

No graph is lowered to it.
"""

from __future__ import annotations

from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.buffers import BufferSlice
from rdrr_runtime.kernels._context import OpContext, need_floats
from rdrr_runtime.kernels._kernel import Dispatch, Grid, dispatch, kernel
from rdrr_runtime.packing import GpuWeight

SIDE = 8  # of a workgroup, in outputs


def matmul_naive(
    ctx: OpContext, weight: GpuWeight, x: BufferSlice, y: BufferSlice, *, label: str
) -> list[Dispatch]:
    """y[rows, N] = x[rows, K] W[N, K]^T, all f32.

    Args:
        ctx: Where it is lowered to.
        weight: F32, by rows, in one part.
        x: f32 [rows, K].
        y: f32 [rows, N]; another buffer than x.
        label: What it is.

    Raises:
        FormatError: Another kind of weight, or a buffer that is too small.
    """
    plain = weight.dtype.name == "F32" and weight.layout is Layout.ROW and len(weight.parts) == 1
    if not plain:
        raise FormatError(
            f"{label}: no weight for the naive product",
            expected="F32 by rows in one buffer",
            found=f"{weight.dtype} by {weight.layout} in {len(weight.parts)}",
        )
    need_floats(f"{label}: x", x, ctx.max_rows * weight.k)
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    what = kernel(
        "matmul_naive",
        constants={"K": weight.k, "N": weight.n, "ROW_WORDS": weight.words_per_row},
    )
    buffers = {"current": ctx.state.step, "x": x, "weight": weight.parts[0].slice, "y": y}
    return [dispatch(what, buffers, Grid(-(-weight.n // SIDE), 1, 1, 1, SIDE), label)]
