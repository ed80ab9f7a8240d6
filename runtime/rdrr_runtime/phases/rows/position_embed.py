"""Learned position embedding: add the table row of each token's position, in place."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.weights.binding import WeightsRecord, bind_parts
from rdrr_runtime.phases.weights.checks import half_units, need_rows
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

THREADS = 32


@dataclass(frozen=True, kw_only=True)
class PositionEmbedRecord(WeightsRecord):
    """Parameters of position_embed.wgsl.

    Attributes:
        by_type: Whether the row of the table is that of the token's type.
        k: Elements of a row.
    """

    shader = "rows/position_embed"

    value: str = choice()
    by_type: bool = choice(default=False)
    k: int
    units: int
    outputs: int
    first: int
    offset: int


def position_embed(
    ctx: OpContext,
    table: GpuWeight,
    x: BufferSlice,
    *,
    offset: int,
    by_type: bool = False,
    label: str,
) -> list[Phase]:
    """Add position embeddings: x[r, :] += table[offset + p, :], where p is the position of row r.

    Args:
        ctx: Lowering context; its state holds the positions.
        table: [offset + context, hidden], in any format except column-major unquantized values.
        x: The embedded tokens [rows, hidden].
        offset: Row of position 0 (OPT: 2).
        by_type: Whether p is the type of the token instead.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The table is column-major and unquantized, the kernel does not support a size,
            or a buffer is too small.
    """
    need_rows(table, label)
    need_multiple(f"{label}: hidden size", table.k, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * table.k)
    units = half_units(table.k)
    phases = []
    for bound in bind_parts(table):
        part = bound.parts[0]
        record = PositionEmbedRecord(
            threads=THREADS,
            variant=table.dtype.name.lower(),
            value=ctx.values,
            by_type=by_type,
            k=table.k,
            units=units,
            outputs=table.outputs(part),
            first=part.first_row,
            offset=offset,
            **bound.fields,
        )
        buffers = {"current": ctx.state.step, "x": x, **bound.buffers}
        if by_type:
            assert ctx.state.segments is not None, "models with types of tokens pack texts"
            buffers["segments"] = ctx.state.segments
        phases.append(Phase(record, buffers, Work(-(-units // THREADS), 1), label))
    return phases
