"""Quantization of a small batch of token rows to int8, the input of `matvec_rows`.

The norm before a product, or the combination of the partial results of attention, is fused. In
contrast to `quantize_rows`, whose layout follows the tiles of `matmul_int8`, the elements of a row
are contiguous here, so that neighbouring threads read neighbouring words.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.products.fusion import AttentionSplits, InputRecord, RowNorm

UNIT = 64
"""Elements of a unit; rows are zero-padded to whole units."""

UNIT_WORDS = 20
"""32-bit words of a unit: 16 of codes, and a scale and a sum for each half of the unit."""

NORM_WORKGROUP = 512
"""Most threads that normalise a vector. On an H200 a step of 8 rows of llama-1b takes 958 us with
512 threads, 963 with 256 and 994 with 128."""

WORKGROUP = 64
"""Most threads where there is no norm, so that a vector is divided among several workgroups: one
processor would wait for the partial results of all heads of a row. 32 to 256 are equally fast."""

MAX_HELD = 4
"""Most times 4 elements that a thread loads at once."""


@dataclass(frozen=True, kw_only=True)
class QuantizeSmallBatch(InputRecord):
    """Parameters of quantize_small_batch.wgsl.

    Attributes:
        k: Elements of a vector.
        held: Times 4 elements that a thread quantizes in an iteration.
        halves: Whether each 16 elements have a scale, instead of each 32.
        unrolled: Partial results that are loaded together; 0 for one after the other.
    """

    shader = "products/quantize_small_batch"
    trusted = True

    subgroups: bool = choice()
    k: int
    units: int
    per_row: int
    vector_items: int
    steps: int
    held: int = choice()
    halves: bool = choice(default=False)
    unrolled: int = choice(default=0)

    @property
    def fills(self) -> bool:
        """See `Record.fills`."""
        return True


def _splits(before: RowNorm | AttentionSplits | None) -> int:
    return before.splits if isinstance(before, AttentionSplits) else 0


def units_of(k: int) -> int:
    """Return the units of a row of `k` elements."""
    return -(-k // UNIT)


def small_batch_bytes(rows: int, k: int) -> int:
    """Return the bytes of `rows` quantized rows of `k` elements."""
    return 4 * UNIT_WORDS * rows * units_of(k)


def quantize_small_batch(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    *,
    k: int,
    before: RowNorm | AttentionSplits | None = None,
    per_row: int = 1,
    halves: bool = False,
    label: str,
) -> list[Phase]:
    """Quantize a small batch of token rows to int8, with one scale for each 32 elements or 16.

    Args:
        ctx: Lowering context.
        x: f32 [rows, per_row, K]; with `AttentionSplits` f32 [rows, heads, splits, head_dim].
        y: Buffer for the result, at least `small_batch_bytes`; the layout is that of
            quantize_small_batch.wgsl.
        k: Elements of a vector.
        before: The norm to apply first, or the partial results to combine first; None for neither.
        per_row: Vectors of a token row.
        halves: Whether each 16 elements have a scale.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: K is not a multiple of 4, or a buffer is too small.
    """
    need_multiple(f"{label}: K", k, 4)
    need_floats(f"{label}: x", x, ctx.max_rows * per_row * k)
    need_floats(f"{label}: y", y, small_batch_bytes(ctx.max_rows * per_row, k) // 4)
    quads = UNIT // 4 * units_of(k)  # times 4 elements
    whole = isinstance(before, RowNorm)  # the norm needs all elements of a vector in one item
    most = min(NORM_WORKGROUP if whole else WORKGROUP, ctx.max_threads)
    threads = ctx.threads(power_of_two(quads, 32, most))
    held = min(MAX_HELD, -(-quads // threads)) if whole else 1
    steps = -(-quads // (threads * held))
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
        held=held,
        halves=halves,
        unrolled=_splits(before) if ctx.grid is not None else 0,
        **(before.fields if before else {}),
    )
    work = Work(record.vector_items * per_row, 1)
    return [Phase(record, {"x": x, "y": y, **(before.buffers if before else {})}, work, label)]
