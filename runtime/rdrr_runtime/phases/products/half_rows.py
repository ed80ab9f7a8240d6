"""Token rows in f16, the input of `matmul_subgroup`.

A row is multiplied by a power of two, so that f16 neither overflows nor loses small values; the
product divides by it. The norm before a product, or the activation of gate and up, is computed by
the same phase, and so is the sum of the splits of a product before the norm.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.products.fusion import AttentionSplits, GatedPair, RowNorm
from rdrr_runtime.phases.products.quantize_rows import RoundedRows, padded, padded_rows
from rdrr_runtime.phases.products.sum_splits import AddedSplits

K_TILE = 64
"""K is padded to a multiple, because steps of any product divide it."""

QUADS = 4
"""Most vectors of 4 elements that a thread holds, where a workgroup may have enough threads."""


@dataclass(frozen=True)
class HalfRows:
    """Token rows in f16, and the factor of each.

    Attributes:
        y: f16 [rows, k_padded].
        factors: f32 [rows].
        rows: Token rows that the buffers hold.
        k: Elements of a row without padding.
    """

    y: BufferSlice
    factors: BufferSlice
    rows: int
    k: int

    @property
    def k_padded(self) -> int:
        """Elements of a row, zero padding included."""
        return padded(self.k, K_TILE)


@dataclass(frozen=True, kw_only=True)
class HalfRowsRecord(RoundedRows):
    """Parameters of half_rows.wgsl.

    Attributes:
        held: Vectors of 4 elements that a thread holds.
        value: Type of the result.
        splits: For `combine`: partial results of each head.
        head_dim: For `combine`: head dimension.
        sums: For `norm`: splits whose sum is added to x first; 0 for none.
        sum_rows: Rows of each of these splits.
        sum_bias: Whether a bias is added with them.
    """

    shader = "products/half_rows"

    held: int = choice()
    subgroups: bool = choice()
    value: str = choice("f16")
    splits: int | None = None
    head_dim: int | None = None
    sums: int = choice(0)
    sum_rows: int | None = None
    sum_bias: bool = choice(default=False)


def half_sizes(rows: int, k: int) -> tuple[int, int]:
    """Return the bytes of `y` and of `factors` for `rows` token rows of `k` elements."""
    return 2 * padded_rows(rows) * padded(k, K_TILE), 4 * padded_rows(rows)


def half_rows(
    ctx: OpContext,
    x: BufferSlice,
    target: HalfRows,
    *,
    before: RowNorm | GatedPair | AttentionSplits | None = None,
    added: AddedSplits | None = None,
    label: str,
) -> list[Phase]:
    """Round token rows to f16.

    Args:
        ctx: Lowering context.
        x: f32 [rows, K]; with a `GatedPair` the gates, with `AttentionSplits` f32
            [rows, heads, splits, head_dim].
        target: Buffers for the result.
        before: The norm, activation or combination to compute first; None for none.
        added: With a `RowNorm`, the sum to add to x before; None for none.
        label: Name of the value, for messages and profiles.

    Raises:
        FormatError: K is not a multiple of 4, or a buffer is too small.
    """
    need_multiple(f"{label}: K", target.k, 4)
    width = target.k * (2 if isinstance(before, GatedPair) and before.up is None else 1)
    if isinstance(before, AttentionSplits):
        width *= before.splits
    need_floats(f"{label}: x", x, ctx.max_rows * width)
    sizes = half_sizes(max(ctx.max_rows, target.rows), target.k)
    need_floats(f"{label}: y", target.y, sizes[0] // 4)
    need_floats(f"{label}: factors", target.factors, sizes[1] // 4)
    buffers = {"current": ctx.state.step, "x": x, "y": target.y, "factors": target.factors}
    fields = {}
    if before is not None:
        buffers |= before.buffers
        fields = before.fields | {"input": before.kind}
    if added is not None:
        need_floats(f"{label}: sums", added.sums, added.splits * added.rows * target.k)
        buffers |= added.buffers
        fields |= added.fields
    quads = target.k_padded // 4
    held = QUADS if added is None else 1
    threads = power_of_two(-(-quads // held), 32, ctx.max_threads)
    record = HalfRowsRecord(
        threads=threads,
        variant=str(fields.get("act", fields.get("input", ""))),
        k=target.k,
        k_padded=target.k_padded,
        held=-(-quads // threads),
        subgroups=ctx.subgroups,
        **fields,
    )
    return [Phase(record, buffers, Work(1, 1), label)]
