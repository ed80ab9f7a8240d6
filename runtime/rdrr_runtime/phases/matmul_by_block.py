"""Products with Q4_K as a published system first had them: a block of 256 weights a thread.

What fused products are measured against; no graph is lowered to it.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, dispatch, flat_grid
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.shaders import kernel

THREADS = 256
ROWS = 4  # token rows of a workgroup, in passes of several


def matmul_by_block(
    ctx: OpContext, weight: GpuWeight, x: BufferSlice, y: BufferSlice, *, label: str
) -> list[Dispatch]:
    """y[rows, N] = x[rows, K] W[N, K]^T.

    Args:
        ctx: Where it is lowered to.
        weight: Q4_K by rows, in one part.
        x: f32 [rows, K].
        y: f32 [rows, N]; another buffer than x.
        label: What it is.

    Raises:
        FormatError: Another kind of weight, K no multiple of 4, or a buffer that is too small.
    """
    plain = weight.dtype.name == "Q4_K" and weight.layout is Layout.ROW and len(weight.parts) == 1
    if not plain:
        raise FormatError(
            f"{label}: no weight for a product by blocks",
            expected="Q4_K by rows in one buffer",
            found=f"{weight.dtype} by {weight.layout} in {len(weight.parts)}",
        )
    need_multiple(f"{label}: K", weight.k, 4)
    need_floats(f"{label}: x", x, ctx.max_rows * weight.k)
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    rows = ROWS if ctx.max_rows > 1 else 1
    what = kernel(
        "matmul_by_block",
        variables={"FORMATS": (weight.form,), "ROWS": rows, "SUBGROUPS": ctx.subgroups},
        constants={
            "WG": THREADS,
            "K": weight.k,
            "N": weight.n,
            "BLOCKS": -(-weight.k // 256),
            **weight.places(weight.parts[0], 0),
        },
    )
    buffers = {"current": ctx.state.step, "x": x, "weight0": weight.parts[0].slice, "y": y}
    return [dispatch(what, buffers, flat_grid(weight.n, rows_axis=2, rows_per_group=rows), label)]
