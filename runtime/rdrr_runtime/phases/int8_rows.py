"""A small batch of token rows in int8, after their norm: what `matvec_rows` multiplies.

`quantize_rows` leaves the rows of long prompts in the order of its tiles; here the inputs of a row
follow each other, so that neighbouring threads read neighbouring words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.weight_units import power_of_two

UNIT = 64
"""Elements of a unit; rows are padded with zeros to whole units."""

UNIT_WORDS = 20
"""32-bit words of a unit: 16 of codes, and two scales with their sums."""

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
    """The partial results of split attention that the rows are joined from.

    Attributes:
        stats: f32 [rows, heads, splits, 2] as the attention leaves it.
        splits: Partial results of each head.
        head_dim: Width of a head, a multiple of 16.
    """

    stats: BufferSlice
    splits: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class Int8Input(Record):
    """Parameters of int8_rows.wgsl.

    Attributes:
        input: `plain`, `norm` or `combine`.
        subgroups: Whether sums go through subgroup operations.
        k: Elements of a vector.
        units: Units of a vector, zeros after K included.
        per_row: Vectors of a token row.
        vector_items: Items of a vector.
        steps: Steps of an item over its elements.
        eps: Added to the mean square, for `norm`.
        offset: Added to the gain, for `norm`.
        splits: Partial results of each head, for `combine`.
        head_dim: Width of a head, for `combine`.
    """

    shader = "int8_rows"
    trusted = True

    input: str = choice()
    subgroups: bool = choice()
    k: int
    units: int
    per_row: int
    vector_items: int
    steps: int
    eps: float | None = None
    offset: float | None = None
    splits: int | None = None
    head_dim: int | None = None


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
) -> list[Phase]:
    """Token rows as int8, with one scale for 32 elements.

    Args:
        ctx: Where it is lowered to.
        x: f32 [rows, per_row, K]; of partial results [rows, heads, splits, head_dim].
        y: Where to put them, at least `int8_rows_bytes`.
        k: Elements of a row.
        before: The norm that is taken first, or how partial results are joined first.
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
    whole = isinstance(before, RowNorm)  # a vector is one item
    buffers, given = _before(ctx, x, before, k=k, label=label)
    record = Int8Input(
        threads=threads,
        subgroups=ctx.subgroups,
        k=k,
        units=units_of(k),
        per_row=per_row,
        vector_items=1 if whole else steps,
        steps=steps if whole else 1,
        **given,
    )
    work = Work(record.vector_items * per_row, 1)
    return [Phase(record, {"x": x, "y": y, **buffers}, work, label)]


def _before(
    ctx: OpContext, x: BufferSlice, before: RowNorm | RowParts | None, *, k: int, label: str
) -> tuple[dict[str, BufferSlice], dict[str, Any]]:
    """Return the buffers and the fields that belong to what comes before the rounding."""
    if before is None:
        return {}, {"variant": "plain", "input": "plain"}
    if isinstance(before, RowNorm):
        need_floats(f"{label}: gain", before.gain, k)
        norm = {"eps": before.eps, "offset": before.offset}
        return {"gain": before.gain}, {"variant": "norm", "input": "norm", **norm}
    need_multiple(f"{label}: head dimension", before.head_dim, 16)
    need_floats(f"{label}: x", x, ctx.max_rows * k * before.splits)
    joined = {"splits": before.splits, "head_dim": before.head_dim}
    return {"stats": before.stats}, {"variant": "combine", "input": "combine", **joined}
