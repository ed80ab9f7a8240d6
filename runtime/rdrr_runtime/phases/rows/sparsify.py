"""Sets all but the largest elements of each row to zero, by a cutoff that assumes a normal law."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice


@dataclass(frozen=True, kw_only=True)
class SparsifyRecord(Record):
    """Parameters of sparsify.wgsl.

    Attributes:
        width: Elements of a row.
        multiplier: Standard deviations from the mean to the cutoff.
    """

    shader = "rows/sparsify"

    subgroups: bool = choice()
    value: str = choice()
    width: int
    multiplier: float


def sparsify(
    ctx: OpContext, x: BufferSlice, *, width: int, multiplier: float, label: str
) -> list[Phase]:
    """Subtract a cutoff in place: x = max(x - (mean + multiplier * deviation), 0).

    Args:
        ctx: Lowering context.
        x: [rows, width].
        width: Elements of a row, a multiple of 4.
        multiplier: Standard deviations from the mean to the cutoff.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support the width, or the buffer is too small.
    """
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    record = SparsifyRecord(
        threads=power_of_two(width // 4, 32, 256),
        subgroups=ctx.subgroups,
        value=ctx.values,
        width=width,
        multiplier=multiplier,
    )
    return [Phase(record, {"x": x}, Work(1, 1), label)]
