"""The end of every pass by the general kernels: final norm, logits, and the next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch
from rdrr_manifests.graph import Head, Norm

from rdrr_runtime.compile.fuse_rows import head_of_rows
from rdrr_runtime.compile.pass_spec import Logits
from rdrr_runtime.phases.argmax import SCRATCH_BYTES, argmax
from rdrr_runtime.phases.argmax_entropy import PICK_BYTES, argmax_entropy
from rdrr_runtime.phases.argmax_entropy import SCRATCH_BYTES as ENTROPY_SCRATCH_BYTES
from rdrr_runtime.phases.elementwise import copy_row, scale, softcap
from rdrr_runtime.phases.rmsnorm import rms_norm

if TYPE_CHECKING:
    from rdrr_runtime.compile.lower import Lowering
    from rdrr_runtime.compile.values import Workspace


def lower_head(low: Lowering, norm: Norm, head: Head) -> BufferSlice:
    """Final norm and logits, of the rows that are wanted."""
    ctx, (vocab, hidden) = low.ctx, head.weight.shape
    single, tail = low.wanted is Logits.LAST, low.wanted is Logits.LAST_N
    x = low.values.get(norm.x)
    rows = 1 if single else ctx.max_rows
    if tail or (single and ctx.max_rows > 1):
        last = low.workspace.named(f"last.{rows}", ctx.value_bytes * rows * hidden)
        low.emit(copy_row(ctx, x, last, width=hidden, several=tail, label="last row"))
        x = last
    logits = low.workspace.named(f"logits.{rows}", 4 * rows * vocab)
    matrix = low.weights.matrices[head.weight.name]
    fused = low.fuses and not single and head_of_rows(low, norm, matrix, x, logits)
    if not fused:
        normed = low.workspace.named(f"final.{rows}", ctx.value_bytes * rows * hidden)
        low.emit(
            rms_norm(
                ctx,
                x,
                low.weights.vectors[norm.weight.name],
                normed,
                width=hidden,
                eps=norm.eps,
                offset=float(norm.unit_offset),
                single_row=single,
                label="final norm",
            )
        )
        low.matmul(matrix, normed, logits, single_row=single, logits=True, label="head")
    if head.scale != 1.0:
        low.emit(
            scale(
                ctx,
                logits,
                width=vocab,
                factor=head.scale,
                single_row=single,
                logits=True,
                label="head.scale",
            )
        )
    if head.softcap is not None:
        low.emit(
            softcap(ctx, logits, width=vocab, cap=head.softcap, single_row=single, label="head.cap")
        )
    return logits


def lower_sample(low: Lowering, logits: BufferSlice, vocab: int) -> Sequence[Dispatch]:
    """Argmax of the last row, which also advances the step; of a tail, what each row says."""
    if low.wanted is Logits.ALL:
        return ()
    if low.wanted is Logits.LAST_N:
        rows = low.ctx.max_rows
        return argmax_entropy(
            logits,
            low.workspace.named(f"entropy.{rows}", ENTROPY_SCRATCH_BYTES * rows),
            picks_of(low.workspace, rows),
            rows=rows,
            vocabulary=vocab,
            label="argmax and entropy",
        )
    scratch = low.workspace.named("argmax", SCRATCH_BYTES)
    return argmax(low.ctx, logits, scratch, vocabulary=vocab, single_row=True, label="argmax")


def picks_of(workspace: Workspace, rows: int) -> BufferSlice:
    """Where passes of so many rows leave what the rows of a tail say."""
    return workspace.named(f"picks.{rows}", PICK_BYTES * rows)
