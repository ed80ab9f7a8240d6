"""A small batch of token rows in int8, after their norm: what `matvec_rows` multiplies.

`quantize_rows` leaves the rows of long prompts in the order of its tiles; here the inputs of a row
follow each other, so that neighbouring threads read neighbouring words.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.fusion import AttentionSplits, InputRecord, RowNorm
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.weight_checks import power_of_two

UNIT = 64
"""Elements of a unit; rows are padded with zeros to whole units."""

UNIT_WORDS = 20
"""32-bit words of a unit: 16 of codes, and two scales with their sums."""

MAX_WORKGROUP = 256


@dataclass(frozen=True, kw_only=True)
class QuantizeSmallBatch(InputRecord):
    """Parameters of quantize_small_batch.wgsl.

    Attributes:
        subgroups: Whether sums go through subgroup operations.
        k: Elements of a vector.
        units: Units of a vector, zeros after K included.
        per_row: Vectors of a token row.
        vector_items: Items of a vector.
        steps: Steps of an item over its elements.
    """

    shader = "quantize_small_batch"
    trusted = True

    subgroups: bool = choice()
    k: int
    units: int
    per_row: int
    vector_items: int
    steps: int


def units_of(k: int) -> int:
    """Units of a row of `k` elements."""
    return -(-k // UNIT)


def small_batch_bytes(rows: int, k: int) -> int:
    """Bytes of `rows` rows of `k` elements."""
    return 4 * UNIT_WORDS * rows * units_of(k)


def quantize_small_batch(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    *,
    k: int,
    before: RowNorm | AttentionSplits | None = None,
    per_row: int = 1,
    label: str,
) -> list[Phase]:
    """Token rows as int8, with one scale for 32 elements.

    Args:
        ctx: Where it is lowered to.
        x: f32 [rows, per_row, K]; of partial results [rows, heads, splits, head_dim].
        y: Where to put them, at least `small_batch_bytes`.
        k: Elements of a row.
        before: The norm that is taken first, or how partial results are joined first.
        per_row: Vectors of K elements in a token row.
        label: What the op is.

    Raises:
        FormatError: K is no multiple of 4, or a buffer is too small.
    """
    need_multiple(f"{label}: K", k, 4)
    need_floats(f"{label}: x", x, ctx.max_rows * per_row * k)
    need_floats(f"{label}: y", y, small_batch_bytes(ctx.max_rows * per_row, k) // 4)
    chunks = 4 * units_of(k)  # a thread takes one of them at a time
    threads = power_of_two(chunks, 32, min(MAX_WORKGROUP, ctx.max_threads))
    steps = -(-chunks // threads)
    whole = isinstance(before, RowNorm)  # a vector is one item
    if isinstance(before, RowNorm):
        need_floats(f"{label}: gain", before.gain, k)
    if isinstance(before, AttentionSplits):
        need_multiple(f"{label}: head dimension", before.head_dim, 16)
        need_floats(f"{label}: x", x, ctx.max_rows * k * before.splits)
    kind = "plain" if before is None else before.kind
    record = QuantizeSmallBatch(
        threads=threads,
        variant=kind,
        input=kind,
        subgroups=ctx.subgroups,
        k=k,
        units=units_of(k),
        per_row=per_row,
        vector_items=1 if whole else steps,
        steps=steps if whole else 1,
        **(before.fields if before else {}),
    )
    work = Work(record.vector_items * per_row, 1)
    return [Phase(record, {"x": x, "y": y, **(before.buffers if before else {})}, work, label)]
