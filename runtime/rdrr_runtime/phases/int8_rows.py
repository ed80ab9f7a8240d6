"""A few token rows in int8, after their norm where there is one: what `matvec_rows` multiplies.

`quantize_rows` leaves the rows of long prompts in the order of its tiles; here the inputs of a row
follow each other, so that neighbouring threads read neighbouring words.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import power_of_two

UNIT = 64
"""Elements that share a place; rows are padded with zeros to whole ones."""

UNIT_WORDS = 20
"""32-bit words of so many elements: 16 of codes, and two scales with their sums."""

MAX_WORKGROUP = 256


@dataclass(frozen=True)
class RowNorm:
    """The norm before a product.

    Attributes:
        gain: f32 [K].
        eps: Added to the mean square.
        offset: Added to the gain.
    """

    gain: BufferSlice
    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class RowParts:
    """That the rows are still in parts of split attention.

    Attributes:
        stats: f32 [rows, heads, splits, 2] as the attention leaves it.
        splits: Parts of each head.
        head_dim: Width of a head, a multiple of 16.
    """

    stats: BufferSlice
    splits: int
    head_dim: int


def units_of(k: int) -> int:
    """Units of a row of `k` elements."""
    return -(-k // UNIT)


def int8_rows_bytes(rows: int, k: int) -> int:
    """Bytes of `rows` rows of `k` elements."""
    return 4 * UNIT_WORDS * rows * units_of(k)


def int8_rows(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    *,
    k: int,
    before: RowNorm | RowParts | None = None,
    per_row: int = 1,
    label: str,
) -> list[Dispatch]:
    """Token rows as int8, with one scale for 32 elements.

    Args:
        ctx: Where it is lowered to.
        x: f32 [rows, per_row, K]; of parts [rows, heads, splits, head_dim].
        y: Where to put them, at least `int8_rows_bytes`.
        k: Elements of a row.
        before: The norm that is taken first, or how parts of attention are joined first.
        per_row: Vectors of K elements in a token row.
        label: What the op is.

    Raises:
        FormatError: K is no multiple of 4, or a buffer is too small.
    """
    need_multiple(f"{label}: K", k, 4)
    need_floats(f"{label}: x", x, ctx.max_rows * per_row * k)
    need_floats(f"{label}: y", y, int8_rows_bytes(ctx.max_rows * per_row, k) // 4)
    chunks = 4 * units_of(k)  # a thread takes one of them at a time
    threads = power_of_two(chunks, 32, min(MAX_WORKGROUP, ctx.max_threads))
    steps = -(-chunks // threads)
    constants: dict[str, float | int | bool] = {
        "WG": threads,
        "K": k,
        "UNITS": units_of(k),
        "PER_ROW": per_row,
        "STEPS": steps if isinstance(before, RowNorm) else 1,
    }
    buffers = {"current": ctx.state.step, "x": x, "y": y}
    kind = "plain"
    if isinstance(before, RowNorm):
        kind = "norm"
        need_floats(f"{label}: gain", before.gain, k)
        buffers["gain"] = before.gain
        constants |= {"EPS": before.eps, "OFFSET": before.offset}
    elif before is not None:
        kind = "combine"
        need_multiple(f"{label}: head size", before.head_dim, 16)
        need_floats(f"{label}: x", x, ctx.max_rows * k * before.splits)
        buffers["stats"] = before.stats
        constants |= {"SPLITS": before.splits, "HEAD_DIM": before.head_dim}
    what = kernel(
        "int8_rows",
        variables={"INPUT": kind, "SUBGROUPS": ctx.subgroups},
        constants=constants,
        variant=kind,
        trusted=True,
    )
    grid = Grid(1 if kind == "norm" else steps, per_row, 1, 1)
    return [dispatch(what, buffers, grid, label)]
