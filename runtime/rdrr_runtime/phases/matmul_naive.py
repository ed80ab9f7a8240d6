"""The plainest matrix product, one output a thread: what tiled products are measured against.

With one token row it is the product that a published system uses for columns. No graph is lowered
to it.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.shaders import kernel

WEIGHT_BYTES = {"F32": 4, "F16": 2}
SQUARE, LINE = (8, 8), (256, 1)
"""Threads of a workgroup along outputs and token rows: of many rows, and of one."""


def matmul_naive(
    ctx: OpContext, weight: GpuWeight, x: BufferSlice, y: BufferSlice, *, label: str
) -> list[Dispatch]:
    """y[rows, N] = x[rows, K] W[N, K]^T, summed in f32.

    Args:
        ctx: Where it is lowered to.
        weight: F32 or F16, by rows or columns, in one part.
        x: f32 [rows, K].
        y: f32 [rows, N]; another buffer than x.
        label: What it is.

    Raises:
        FormatError: Another kind of weight, or a buffer that is too small.
    """
    size = WEIGHT_BYTES.get(weight.dtype.name)
    if size is None or weight.layout is Layout.FLAT or len(weight.parts) != 1:
        raise FormatError(
            f"{label}: no weight for the naive product",
            expected="F32 or F16 by rows or columns, in one buffer",
            found=f"{weight.dtype} by {weight.layout} in {len(weight.parts)}",
        )
    need_floats(f"{label}: x", x, ctx.max_rows * weight.k)
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    wide, high = SQUARE if ctx.max_rows > 1 else LINE
    what = kernel(
        "matmul_naive",
        variables={"WEIGHT": weight.dtype.name.lower()},
        constants={
            "K": weight.k,
            "N": weight.n,
            "ROW": 4 * weight.words_per_row // size,
            "COLUMN": weight.layout is Layout.COLUMN,
            "WIDE": wide,
            "HIGH": high,
        },
    )
    buffers = {"current": ctx.state.step, "x": x, "weight": weight.parts[0].slice, "y": y}
    return [dispatch(what, buffers, Grid(-(-weight.n // wide), 1, 1, 1, high), label)]
