"""Lowering of what joins a model and its draft head: kept hidden states, and concatenations."""

from __future__ import annotations

from rdrr_format.errors import FormatError
from rdrr_manifests.graph.ops import Concat, Norm, Recall

from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.norms import emit_norm
from rdrr_runtime.phases.cache.kept_hidden import keep_hidden, recall
from rdrr_runtime.phases.rows.concat import concat


def lower_recall(build: PassBuilder, op: Recall) -> None:
    """Emit the copy of the kept hidden states of the rows.

    Raises:
        FormatError: The states that are kept have another width.
    """
    kept = build.model.hidden
    assert kept is not None, "a graph that reads hidden states is loaded beside another model"
    if kept.width != op.width:
        raise FormatError(
            "the draft head reads hidden states of another width",
            where=op.out,
            expected=kept.width,
            found=op.width,
        )
    y = build.values.allocate(op.out, op.width)
    build.emit(recall(build.ctx, kept, y, label=op.out))


def lower_concat(build: PassBuilder, op: Concat) -> None:
    """Emit the concatenation of two values."""
    values = build.values
    widths = values.live[op.x][0], values.live[op.y][0]
    z = values.allocate(op.out, sum(widths))
    build.emit(concat(build.ctx, (values.get(op.x), values.get(op.y)), widths, z, label=op.out))
    values.mark_read(op.x, op.y)


def keep_final_states(build: PassBuilder, norm: Norm) -> None:
    """Emit the final norm of every row, and keep the results for a draft head."""
    kept = build.model.hidden
    assert kept is not None, "such a pass belongs to a model with a draft head"
    rows = build.ctx.max_rows
    y = build.workspace.named(f"kept.{rows}", build.ctx.value_bytes * rows * kept.width)
    emit_norm(build, norm, build.values.get(norm.x), y, label="final norm of all rows")
    build.emit(keep_hidden(build.ctx, kept, y, label="keep hidden states"))
