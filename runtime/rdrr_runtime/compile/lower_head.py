"""The end of every pass: final norm, logits, and the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Head, Norm

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.lower_products import (
    Served,
    emit_product,
    fold,
)
from rdrr_runtime.compile.pass_spec import Logits
from rdrr_runtime.compile.products import Family
from rdrr_runtime.compile.values import Workspace
from rdrr_runtime.phases.argmax import SCRATCH_BYTES, argmax, choose_best
from rdrr_runtime.phases.argmax_entropy import PICK_BYTES, argmax_entropy
from rdrr_runtime.phases.argmax_entropy import SCRATCH_BYTES as ENTROPY_SCRATCH_BYTES
from rdrr_runtime.phases.copy import copy_row
from rdrr_runtime.phases.elementwise import scale, softcap
from rdrr_runtime.phases.fusion import Input, Output, RowNorm
from rdrr_runtime.phases.matvec import CANDIDATE_BYTES, MAX_OUTPUT_GROUPS
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.rmsnorm import rms_norm


@dataclass(frozen=True)
class Ended:
    """The head of a pass.

    Attributes:
        logits: f32 [1 or rows, vocab].
        best: The phase that left the largest logit of each of its items, where one did.
    """

    logits: BufferSlice
    best: Phase | None = None


def lower_head(build: PassBuilder, norm: Norm, head: Head) -> Ended:
    """Emit final norm and logits, of the rows whose logits are computed."""
    single = build.spec.logits is Logits.LAST
    rows = 1 if single else build.ctx.max_rows
    x = _rows_of_head(build, norm, head, rows)
    logits = build.workspace.named(f"logits.{rows}", 4 * rows * head.weight.shape[0])
    weight = build.matrix(head.weight)
    ctx = build.ctx.for_one_row() if single else build.ctx
    served = fold(build, (weight,), ctx)
    source = Input(x, RowNorm(*build.gain(norm)), name="final norm")
    is_plain = head.scale == 1.0 and head.softcap is None
    if served is not None and served.family is Family.SMALL_BATCH:
        emit_product(build, served, source, Output((logits,)), "head")
    elif served is not None and is_plain:
        return _one_row_head(build, served, source, logits)
    else:
        _general_head(build, norm, head, x, logits, single=single)
    _finish_logits(build, head, logits, single=single)
    return Ended(logits)


def _rows_of_head(build: PassBuilder, norm: Norm, head: Head, rows: int) -> BufferSlice:
    """Return the rows that the head reads: the last, or the last n of a window, are copied.

    The logits of a batch are those of all its rows.
    """
    x, hidden = build.values.get(norm.x), head.weight.shape[1]
    last_n = build.spec.logits is Logits.LAST_N
    has_all = build.spec.logits is Logits.ALL or build.spec.is_mapped
    if has_all or (build.ctx.max_rows == 1 and not last_n):
        return x
    last = build.workspace.named(f"last.{rows}", build.ctx.value_bytes * rows * hidden)
    build.emit(copy_row(build.ctx, x, last, width=hidden, several=last_n, label="last row"))
    return last


def _one_row_head(build: PassBuilder, served: Served, source: Input, logits: BufferSlice) -> Ended:
    candidates = build.workspace.named("candidates", CANDIDATE_BYTES * MAX_OUTPUT_GROUPS)
    output = Output((logits,), "best", best=candidates)
    (best,) = emit_product(build, served, source, output, "head")
    return Ended(logits, best)


def _general_head(
    build: PassBuilder,
    norm: Norm,
    head: Head,
    x: BufferSlice,
    logits: BufferSlice,
    *,
    single: bool,
) -> None:
    ctx, (_, hidden) = build.ctx, head.weight.shape
    rows = 1 if single else ctx.max_rows
    y = build.workspace.named(f"final.{rows}", ctx.value_bytes * rows * hidden)
    gain, eps, offset = build.gain(norm)
    label = "final norm"
    made = rms_norm(
        ctx, x, gain, y, width=hidden, eps=eps, offset=offset, single_row=single, label=label
    )
    build.emit(made)
    weight = build.matrix(head.weight)
    # The kernel is chosen for the rows of the head. What else is fused is no business of a norm
    # and a product that could not be.
    product = build.product((weight,), ctx.for_one_row() if single else ctx)
    served = Served(product, build.choose(replace(product, fuses=False)))
    served = replace(served, product=replace(product, ctx=ctx))
    source, output = Input(y, name=f"{norm.out}.head"), Output((logits,))
    emit_product(build, served, source, output, "head", single_row=single, logits=True)


def _finish_logits(build: PassBuilder, head: Head, logits: BufferSlice, *, single: bool) -> None:
    ctx, vocab = build.ctx, head.weight.shape[0]
    if head.scale != 1.0:
        factor, label = head.scale, "head.scale"
        made = scale(
            ctx, logits, width=vocab, factor=factor, single_row=single, logits=True, label=label
        )
        build.emit(made)
    if head.softcap is not None:
        made = softcap(
            ctx, logits, width=vocab, cap=head.softcap, single_row=single, label="head.cap"
        )
        build.emit(made)


def sample(build: PassBuilder, ended: Ended, vocab: int) -> Sequence[Phase]:
    """Return what makes the next token: an argmax that advances the step, or picks of all rows."""
    if build.spec.logits is Logits.ALL:
        return ()
    if ended.best is not None:
        return [choose_best(build.ctx.state, ended.best, label="argmax")]
    if build.spec.logits is Logits.LAST_N:
        rows = build.ctx.max_rows
        return argmax_entropy(
            ended.logits,
            build.workspace.named(f"entropy.{rows}", ENTROPY_SCRATCH_BYTES * rows),
            picks_of(build.workspace, rows),
            rows=rows,
            vocabulary=vocab,
            label="argmax and entropy",
        )
    scratch = build.workspace.named("argmax", SCRATCH_BYTES)
    return argmax(build.ctx.state, ended.logits, scratch, vocabulary=vocab, label="argmax")


def picks_of(workspace: Workspace, rows: int) -> BufferSlice:
    """Return where passes of `rows` rows leave the pick of each."""
    return workspace.named(f"picks.{rows}", PICK_BYTES * rows)
