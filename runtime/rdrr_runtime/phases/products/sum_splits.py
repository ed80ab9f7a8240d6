"""The sum of a product's splits: what workgroups have computed from parts of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class SumSplits(Record):
    """Parameters of sum_splits.wgsl.

    Attributes:
        splits: Sums to add.
        bias: Whether a bias is added.
        n: Elements of a row, a multiple of 4.
        rows: Rows of each split.
        accumulate: Add to y instead of replacing it.
    """

    shader = "products/sum_splits"
    trusted = True

    splits: int = choice()
    bias: bool = choice(default=False)
    n: int
    rows: int
    accumulate: bool


def sum_splits(
    ctx: OpContext,
    sums: BufferSlice,
    factors: BufferSlice,
    y: BufferSlice,
    *,
    splits: int,
    n: int,
    bias: BufferSlice | None,
    accumulate: bool,
    label: str,
) -> list[Phase]:
    """Add the sums of splits, y = factor * sum (+ bias) (+ y).

    Args:
        ctx: Lowering context.
        sums: f32 [splits, rows, n].
        factors: f32 [rows], what each row is multiplied by.
        y: f32 [rows, n].
        splits: Sums to add.
        n: Elements of a row, a multiple of 4.
        bias: f32 [n].
        accumulate: Add to y instead of replacing it.
        label: Name of the product, for messages and profiles.

    Raises:
        FormatError: A buffer is too small.
    """
    need_floats(f"{label}: sums of splits", sums, splits * ctx.max_rows * n)
    buffers = {"current": ctx.state.step, "sums": sums, "factors": factors, "y": y}
    if bias is not None:
        buffers["bias"] = bias
    record = SumSplits(
        threads=THREADS,
        splits=splits,
        bias=bias is not None,
        n=n,
        rows=ctx.max_rows,
        accumulate=accumulate,
    )
    return [Phase(record, buffers, Work(-(-n // (4 * THREADS)), 1), label)]
