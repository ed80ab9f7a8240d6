"""Elementwise ops in place, and the row that goes to the head."""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.shaders import kernel


def residual_add(
    ctx: OpContext, x: BufferSlice, r: BufferSlice, *, width: int, label: str
) -> list[Dispatch]:
    """x = x + r, both [rows, width], two different buffers."""
    return _in_place(ctx, "add", {"x": x, "r": r}, width, 1.0, label)


def softcap(
    ctx: OpContext, x: BufferSlice, *, width: int, cap: float, single_row: bool = False, label: str
) -> list[Dispatch]:
    """x = cap * tanh(x / cap) on logits, f32 [rows, width] (one row with `single_row`)."""
    operands = {"x": x}
    return _in_place(
        ctx, "softcap", operands, width, cap, label, single_row=single_row, logits=True
    )


def scale(
    ctx: OpContext,
    x: BufferSlice,
    *,
    width: int,
    factor: float,
    single_row: bool = False,
    logits: bool = False,
    label: str,
) -> list[Dispatch]:
    """x = factor * x on [rows, width] (one row with `single_row`), f32 if x is `logits`."""
    operands = {"x": x}
    return _in_place(
        ctx, "scale", operands, width, factor, label, single_row=single_row, logits=logits
    )


def copy_row(
    ctx: OpContext, x: BufferSlice, y: BufferSlice, *, width: int, several: bool = False, label: str
) -> list[Dispatch]:
    """y[0, :] = x[rows - 1, :]: the last row alone, so that the head computes no other logits.

    With `several` it is the last n rows, for a launch of n rows.
    """
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    ctx.need_values(f"{label}: y", y, (ctx.max_rows if several else 1) * width)
    what = kernel("copy_row", variables={"VALUE": ctx.values}, constants={"WIDTH": width})
    buffers = {"current": ctx.state.step, "x": x, "y": y}
    grid = Grid(-(-width // 64), 1, 1, 1 if several else None)
    return [dispatch(what, buffers, grid, label)]


def _in_place(
    ctx: OpContext,
    op: str,
    operands: dict[str, BufferSlice],
    width: int,
    factor: float,
    label: str,
    *,
    single_row: bool = False,
    logits: bool = False,
) -> list[Dispatch]:
    rows = 1 if single_row else ctx.max_rows
    need = need_floats if logits else ctx.need_values
    for name, buffer in operands.items():
        need(f"{label}: {name}", buffer, rows * width)
    what = kernel(
        "elementwise",
        variables={"OP": op, "VALUE": ctx.values, "X": "f32" if logits else ctx.values},
        constants={"WIDTH": width, "FACTOR": factor, "SINGLE_ROW": single_row},
        variant=op,
    )
    grid = Grid(-(-width // 64), 1, 1, None if single_row else 1)
    return [dispatch(what, {"current": ctx.state.step, **operands}, grid, label)]
