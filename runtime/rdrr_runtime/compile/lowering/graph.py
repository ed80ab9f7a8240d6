"""Lowering: from a graph to the phases of a pass.

Lowering walks the ops in order. Where a pattern begins that fused kernels can serve, it emits their
phases; otherwise it lowers the op by itself. `rdrr_runtime.compile.patterns` does the matching,
`rdrr_runtime.compile.choice` chooses kernels, and the modules beside this one make the phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Head, Norm, Op, values_read

from rdrr_runtime.compile.choice.decision import Decision
from rdrr_runtime.compile.lowering.attention import serve_attention_block
from rdrr_runtime.compile.lowering.builder import LoadedModel, PassBuilder
from rdrr_runtime.compile.lowering.head import lower_head, picks_of, sample
from rdrr_runtime.compile.lowering.layers import serve_gated, serve_normed_linears
from rdrr_runtime.compile.lowering.linear_attention import serve_linear_attention
from rdrr_runtime.compile.lowering.mixtures import serve_mixture
from rdrr_runtime.compile.lowering.mtp import keep_final_states
from rdrr_runtime.compile.lowering.norms import emit_norm, lower_sum, settle_sum
from rdrr_runtime.compile.lowering.ops import check_fields, lower_op
from rdrr_runtime.compile.lowering.rows import (
    serve_gated_input,
    serve_normed_products,
    serve_row_feed_forward,
)
from rdrr_runtime.compile.lowering.values import Values
from rdrr_runtime.compile.pass_spec import PassSpec, Slots
from rdrr_runtime.compile.patterns.attention import (
    match_attention_block,
    match_normed_projections,
)
from rdrr_runtime.compile.patterns.layers import (
    Body,
    match_branch,
    match_gated_feed_forward,
)
from rdrr_runtime.compile.patterns.linear_attention import match_linear_attention
from rdrr_runtime.compile.patterns.mixtures import match_mixture
from rdrr_runtime.compile.patterns.residual import is_read_next, match_normed_sum
from rdrr_runtime.compile.patterns.rows import (
    match_gated_input,
    match_normed_products,
    match_row_feed_forward,
)
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.rows.inject import inject


@dataclass(frozen=True)
class Pass:
    """A lowered pass: a list of phases, in three parts.

    Attributes:
        spec: The kind of pass.
        rows: Largest number of token rows.
        body: The phases up to the last layer, and those that keep the hidden states of the rows.
        head: The phases of the final norm and the logits.
        sample: The phases of the argmax, which also advances the step. In a pass with picks: the
            phases of the most probable id and the entropy of each row.
        logits: Buffer of the logits, f32 [1 or rows, vocab]; in a pass without logits, that of the
            hidden states that the head reads, [rows, their width].
        picks: Buffer of the picks, (u32 id, f32 entropy) [rows]; None in a pass without picks.
        decisions: The kernel that serves each op and why, in order.
    """

    spec: PassSpec
    rows: int
    body: tuple[Phase, ...]
    head: tuple[Phase, ...]
    sample: tuple[Phase, ...]
    logits: BufferSlice
    picks: BufferSlice | None
    decisions: tuple[Decision, ...]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases, in order."""
        return (*self.body, *self.head, *self.sample)

    @property
    def linkable(self) -> tuple[Phase, ...]:
        """The phases that one dispatch may compute; picks of several rows are made behind it."""
        return self.phases if self.picks is None else (*self.body, *self.head)

    def as_data(self) -> dict[str, Any]:
        """Return the pass as values that JSON can hold."""
        return {
            "pass": self.spec.name,
            "rows": self.rows,
            "phases": [phase.as_data() for phase in self.phases],
        }


def lower(model: LoadedModel, spec: PassSpec, ctx: OpContext, cache: KvCache) -> Pass:
    """Return the phases of a pass of up to `ctx.max_rows` token rows.

    Args:
        model: A graph with its memory.
        spec: The kind of pass.
        ctx: State of the step, features and limits.
        cache: Keys and values.

    Raises:
        FormatError: The runtime cannot compute an op.
    """
    graph = model.graph
    check_fields(graph.ops)
    *_, last, head = graph.ops
    assert isinstance(head, Head), "the last op is the head"
    norm, whole = last if isinstance(last, Norm) else None, Body.of(graph.ops)
    body = Body(whole.ops[: -1 if norm is None else -2], whole.readers, whole.last_reader)
    values = Values(
        model.workspace, Counter(whole.readers), None if ctx.grid is None else ctx.max_rows
    )
    build = PassBuilder(model, spec, ctx, cache, body, values)
    index, images = 0, _features_of_images(build)
    while index < len(body.ops):
        index += _serve(build, index)
        op = body.ops[index - 1]
        if op.out in images:
            _emit_images(build, op.out, images.pop(op.out), adds=index > 1)
    assert not images, "no pattern of ops reaches beyond a layer"
    if spec.keeps_hidden:
        assert norm is not None, "the head of a model with a draft head reads a norm"
        settle_sum(build)
        keep_final_states(build, norm)
    build.layers = len(build.phases)
    lowered = lower_head(build, norm, head)
    logits = len(build.phases)
    build.emit(sample(build, lowered, head.weight.shape[0]))
    phases = tuple(build.phases)
    return Pass(
        spec,
        ctx.max_rows,
        phases[: build.layers],
        phases[build.layers : logits],
        phases[logits:],
        lowered.logits,
        picks_of(model.workspace, ctx.max_rows) if spec.has_picks else None,
        tuple(build.decisions),
    )


def _features_of_images(build: PassBuilder) -> dict[str, BufferSlice]:
    """Return the features of each value that takes some; a decoded token is never of an image."""
    images = build.model.images
    decodes = build.ctx.max_rows == 1 or build.spec.slots is Slots.DISTINCT
    return {} if images is None or decodes else dict(images.buffers)


def _emit_images(build: PassBuilder, value: str, features: BufferSlice, *, adds: bool) -> None:
    """Emit the phase that puts the features of images into the residual stream."""
    images = build.model.images
    assert images is not None, "only models that see have features"
    settle_sum(build)
    x, label = build.values.get(value), f"{value}.images"
    width, first = images.width, images.first
    build.emit(inject(build.ctx, x, features, width=width, first=first, adds=adds, label=label))


def _serve(build: PassBuilder, index: int) -> int:
    """Emit a pattern of ops that begins at `index`, or one op; return the number of ops."""
    served = _serve_pattern(build, index) if build.model.may_fuse else 0
    if served:
        return served
    settle(build, build.body.ops[index])
    served = _serve_sum(build, index) if build.model.may_fuse else 0
    if served:
        return served
    branch = match_branch(build.body, index)
    if branch is not None:
        lower_op(build, branch.op, branch.residual)
        return branch.count
    lower_op(build, build.body.ops[index])
    return 1


def _serve_sum(build: PassBuilder, index: int) -> int:
    """Defer or emit the sum of the stream and a normed branch; return the number of ops, or 0."""
    stream_sum = match_normed_sum(build.body, index)
    if stream_sum is None:
        return 0
    if build.ctx.max_rows == 1 and is_read_next(build.body, index, stream_sum):
        build.pending_sum = stream_sum
    else:
        lower_sum(build, stream_sum)
    return stream_sum.count


def settle(build: PassBuilder, op: Op) -> None:
    """Emit the deferred sum and the deferred norms that an op reads, which it does not compute."""
    settle_sum(build)
    for value in values_read(op):
        norm = build.deferred.pop(value, None)
        if norm is not None:
            y = build.values.allocate(norm.out, norm.width)
            emit_norm(build, norm, build.values.get(norm.x), y, label=norm.out)
            build.values.mark_read(norm.x)


P = TypeVar("P")


@dataclass(frozen=True)
class _Pattern(Generic[P]):
    """A run of ops that fused kernels may serve.

    Attributes:
        match: Returns the pattern that begins at an op; None if none does.
        serve: Emits the phases of a pattern and returns its number of ops; 0 if no kernel can serve
            it, and then nothing has been emitted.
        one_row: Whether its kernels take one row only.
        takes_sum: Whether its first product computes a deferred sum, or has it emitted.
    """

    match: Callable[[Body, int], P | None]
    serve: Callable[[PassBuilder, P], int]
    one_row: bool = False
    takes_sum: bool = False

    def serve_at(self, build: PassBuilder, index: int) -> int:
        """Emit the pattern if it begins at an op; return the number of ops, or 0."""
        if self.one_row and build.ctx.max_rows != 1:
            return 0
        pattern = self.match(build.body, index)
        if pattern is None:
            return 0
        if not self.takes_sum:
            settle_sum(build)
        return self.serve(build, pattern)


_PATTERNS: tuple[_Pattern[Any], ...] = (
    _Pattern(match_attention_block, serve_attention_block, takes_sum=True),
    _Pattern(match_linear_attention, serve_linear_attention, one_row=True, takes_sum=True),
    _Pattern(match_mixture, serve_mixture, one_row=True),
    _Pattern(match_gated_feed_forward, serve_gated, takes_sum=True),
    _Pattern(match_row_feed_forward, serve_row_feed_forward, one_row=True, takes_sum=True),
    _Pattern(match_gated_input, serve_gated_input, one_row=True, takes_sum=True),
    _Pattern(match_normed_products, serve_normed_products, one_row=True, takes_sum=True),
    _Pattern(match_normed_projections, serve_normed_linears),
)
"""The patterns in the order of trying; those that save more phases come first."""


def _serve_pattern(build: PassBuilder, index: int) -> int:
    """Emit the first pattern that fused kernels can serve; return the number of ops, or 0."""
    counts = (pattern.serve_at(build, index) for pattern in _PATTERNS)
    return next((count for count in counts if count), 0)
