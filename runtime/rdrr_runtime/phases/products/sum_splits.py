"""The sum of a product's splits: what workgroups have computed from parts of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class AddedSplits:
    """The sum that a phase adds to rows, for a phase that adds it as it reads them.

    Attributes:
        sums: f32 [splits, rows, K].
        splits: Sums to add.
        rows: Rows of each split.
        bias: f32 [K]; None for none.
    """

    sums: BufferSlice
    splits: int
    rows: int
    bias: BufferSlice | None = None

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which half_rows.wgsl declares them."""
        return {"sums": self.sums} | ({} if self.bias is None else {"bias": self.bias})

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of a `HalfRowsRecord`."""
        return {"sums": self.splits, "sum_rows": self.rows, "sum_bias": self.bias is not None}


def added_splits(phase: Phase, x: BufferSlice) -> AddedSplits | None:
    """Return the sum that a phase of `sum_splits` adds to x; None for any other phase."""
    record = phase.record
    if not isinstance(record, SumSplits) or not record.accumulate or phase.buffers["y"] != x:
        return None
    return AddedSplits(phase.buffers["sums"], record.splits, record.rows, phase.buffers.get("bias"))


def sum_splits(
    ctx: OpContext,
    sums: BufferSlice,
    y: BufferSlice,
    *,
    splits: int,
    n: int,
    bias: BufferSlice | None,
    accumulate: bool,
    label: str,
) -> list[Phase]:
    """Add the sums of splits, y = sum (+ bias) (+ y).

    Args:
        ctx: Lowering context.
        sums: f32 [splits, rows, n].
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
    buffers = {"current": ctx.state.step, "sums": sums, "y": y}
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
