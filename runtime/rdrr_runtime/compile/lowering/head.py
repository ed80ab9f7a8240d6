"""Lowering of the end of a pass: final norm, logits, and the choice of the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Head, Norm

from rdrr_runtime.compile.choice.products import TILED_FAMILIES, Family
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.lowering.inputs import normed, take_sum
from rdrr_runtime.compile.lowering.norms import emit_norm, settle_sum
from rdrr_runtime.compile.lowering.products import (
    Served,
    emit_product,
    fused_product,
)
from rdrr_runtime.compile.lowering.values import Workspace
from rdrr_runtime.compile.pass_spec import Logits
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.products.fusion import Input, Output
from rdrr_runtime.phases.products.matvec import CANDIDATE_BYTES, MAX_OUTPUT_GROUPS
from rdrr_runtime.phases.rows.copy import copy_row
from rdrr_runtime.phases.rows.elementwise import scale, softcap
from rdrr_runtime.phases.sampling.argmax import SCRATCH_BYTES, argmax, choose_best
from rdrr_runtime.phases.sampling.argmax_entropy import PICK_BYTES, argmax_entropy
from rdrr_runtime.phases.sampling.argmax_entropy import SCRATCH_BYTES as ENTROPY_SCRATCH_BYTES


@dataclass(frozen=True)
class LoweredHead:
    """The lowered head of a pass.

    Attributes:
        logits: Buffer of the logits, f32 [1 or rows, vocab]; in a pass without logits, that of the
            hidden states that the head reads, [rows, their width].
        best: The phase that also left the largest logit of each of its workgroups; None if there is
            none.
    """

    logits: BufferSlice
    best: Phase | None = None


def lower_head(build: PassBuilder, norm: Norm | None, head: Head) -> LoweredHead:
    """Emit the final norm, if there is one, and the logits of the rows that the pass wants."""
    if build.spec.logits is Logits.NONE:
        settle_sum(build)
        return LoweredHead(_hidden_states(build, norm, head))
    single = build.spec.logits is Logits.LAST
    rows = 1 if single else build.ctx.max_rows
    logits = build.workspace.named(f"logits.{rows}", 4 * rows * head.weight.shape[0])
    weight = build.matrix(head.weight)
    ctx = build.ctx.for_one_row() if single else build.ctx
    is_fusible = (norm is None or norm.is_plain) and not head.bias
    served = fused_product(build, (weight,), ctx) if is_fusible else None
    is_token = head.scale == 1.0 and head.softcap is None and not build.spec.has_picks
    if served is not None and served.family is Family.ONE_ROW and is_token:
        return _one_row_head(build, served, norm, head, logits)
    settle_sum(build)
    x = _rows_of_head(build, norm, head, rows)
    if served is not None:
        emit_product(build, served, _source(build, norm, head, x), Output((logits,)), "head")
    else:
        _general_head(build, norm, head, x, logits, single=single)
    _finish_logits(build, head, logits, single=single)
    return LoweredHead(logits)


def _stream(norm: Norm | None, head: Head) -> str:
    """Return the name of the value that the layers leave, before the final norm."""
    return head.x if norm is None else norm.x


def _source(build: PassBuilder, norm: Norm | None, head: Head, x: BufferSlice) -> Input:
    """Return the input of the head's product, which applies the final norm if there is one."""
    return Input(x, name=head.x) if norm is None else normed(build, norm, x)


def _hidden_states(build: PassBuilder, norm: Norm | None, head: Head) -> BufferSlice:
    """Emit the final norm of every row, if there is one, and return what the head would read."""
    if norm is None:
        return build.values.get(head.x)
    rows, x = build.ctx.max_rows, build.values.get(norm.x)
    y = build.workspace.named(f"final.{rows}", build.ctx.value_bytes * rows * norm.width)
    emit_norm(build, norm, x, y, label="final norm")
    return y


def _rows_of_head(build: PassBuilder, norm: Norm | None, head: Head, rows: int) -> BufferSlice:
    """Return the buffer of the rows that the head reads, before the final norm.

    If these are only the last row, or the last n rows of a window, they are copied. A batch
    computes the logits of all its rows.
    """
    x, hidden = build.values.get(_stream(norm, head)), head.weight.shape[1]
    last_n = build.spec.logits is Logits.LAST_N
    has_all = build.spec.logits is Logits.ALL or build.spec.is_multi_sequence
    if has_all or (build.ctx.max_rows == 1 and not last_n):
        return x
    last = build.workspace.named(f"last.{rows}", build.ctx.value_bytes * rows * hidden)
    build.emit(copy_row(build.ctx, x, last, width=hidden, several=last_n, label="last row"))
    return last


def _one_row_head(
    build: PassBuilder, served: Served, norm: Norm | None, head: Head, logits: BufferSlice
) -> LoweredHead:
    candidates = build.workspace.named("candidates", CANDIDATE_BYTES * MAX_OUTPUT_GROUPS)
    output, weights = Output((logits,), "best", best=candidates), served.product.weights
    source = take_sum(build, _stream(norm, head), norm, weights, output, stored=False)
    if source is None:
        source = _source(build, norm, head, _rows_of_head(build, norm, head, 1))
    (best,) = emit_product(build, served, source, output, "head")
    return LoweredHead(logits, best)


def _general_head(
    build: PassBuilder,
    norm: Norm | None,
    head: Head,
    x: BufferSlice,
    logits: BufferSlice,
    *,
    single: bool,
) -> None:
    ctx, (_, hidden) = build.ctx, head.weight.shape
    rows = 1 if single else ctx.max_rows
    weight = build.matrix(head.weight)
    bias = None if head.bias is None else build.vector(head.bias)
    # The kernel is chosen for the rows of the head, which may be fewer than those of the pass.
    # Fusion is off, since the caller has found that norm and head cannot be fused here.
    product = build.product((weight,), ctx.for_one_row() if single else ctx)
    served = Served(product, build.choose(replace(product, may_fuse=False)))
    served = replace(served, product=replace(product, ctx=ctx))
    if norm is not None and norm.is_plain and served.family in TILED_FAMILIES:
        source = normed(build, norm, x)
    else:
        if norm is not None:
            y = build.workspace.named(f"final.{rows}", ctx.value_bytes * rows * hidden)
            emit_norm(build, norm, x, y, single_row=single, label="final norm")
            x = y
        source = Input(x, name=f"{head.x}.head")
    output = Output((logits,), bias=bias)
    emit_product(build, served, source, output, "head", single_row=single, logits=True)


def _finish_logits(build: PassBuilder, head: Head, logits: BufferSlice, *, single: bool) -> None:
    ctx, vocab = build.ctx, head.weight.shape[0]
    if head.scale != 1.0:
        factor, label = head.scale, "head.scale"
        phases = scale(
            ctx, logits, width=vocab, factor=factor, single_row=single, logits=True, label=label
        )
        build.emit(phases)
    if head.softcap is not None:
        phases = softcap(
            ctx, logits, width=vocab, cap=head.softcap, single_row=single, label="head.cap"
        )
        build.emit(phases)


def sample(build: PassBuilder, lowered: LoweredHead, vocab: int) -> Sequence[Phase]:
    """Return the phases of the next token: an argmax that advances the step, or picks per row."""
    if build.spec.logits in (Logits.ALL, Logits.NONE):
        return ()
    threads = build.ctx.grid_threads
    if lowered.best is not None:
        return [choose_best(build.ctx.state, lowered.best, threads=threads, label="argmax")]
    if build.spec.logits is Logits.LAST_N:
        rows = build.ctx.max_rows
        return argmax_entropy(
            lowered.logits,
            build.workspace.named(f"entropy.{rows}", ENTROPY_SCRATCH_BYTES * rows),
            picks_of(build.workspace, rows),
            rows=rows,
            vocabulary=vocab,
            label="argmax and entropy",
        )
    scratch = build.workspace.named("argmax", SCRATCH_BYTES)
    return argmax(
        build.ctx.state,
        lowered.logits,
        scratch,
        vocabulary=vocab,
        threads=threads,
        label="argmax",
    )


def picks_of(workspace: Workspace, rows: int) -> BufferSlice:
    """Return the buffer of the picks of passes with `rows` rows, (u32 id, f32 entropy) [rows]."""
    return workspace.named(f"picks.{rows}", PICK_BYTES * rows)
