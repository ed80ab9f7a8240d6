"""Learned position embedding: add the table row of each token's position, in place."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.rows.embed import THREADS, TableRecord, bound_parts
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


@dataclass(frozen=True, kw_only=True)
class PositionEmbedRecord(TableRecord):
    """Parameters of position_embed.wgsl.

    Attributes:
        by_type: Whether the row of the table is that of the token's type.
    """

    shader = "rows/position_embed"

    by_type: bool = choice(default=False)
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
    phases = []
    for fields, buffers in bound_parts(ctx, table, x, label):
        record = PositionEmbedRecord(threads=THREADS, by_type=by_type, offset=offset, **fields)
        if by_type:
            assert ctx.state.segments is not None, "models with types of tokens pack texts"
            buffers["segments"] = ctx.state.segments
        phases.append(Phase(record, buffers, Work(-(-record.units // THREADS), 1), label))
    return phases
