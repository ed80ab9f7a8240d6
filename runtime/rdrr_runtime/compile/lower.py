"""From a graph to the launches of a pass: each pattern is served as a whole, or op by op.

Matching is the business of `rdrr_runtime.compile.patterns`, the choice of kernels that of
`decision` and of the tables of candidates; the modules `lower_*` make the launches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch
from rdrr_manifests.graph import Head, Norm

from rdrr_runtime.compile.builder import Model, PassBuilder
from rdrr_runtime.compile.decision import Decision
from rdrr_runtime.compile.lower_attention import serve_attention_block
from rdrr_runtime.compile.lower_head import lower_head, lower_sample
from rdrr_runtime.compile.lower_layers import serve_gated, serve_normed_linears
from rdrr_runtime.compile.lower_ops import lower_branch, lower_op
from rdrr_runtime.compile.pass_spec import PassSpec
from rdrr_runtime.compile.patterns import (
    Body,
    check_fields,
    match_attention_block,
    match_branch,
    match_gated_feed_forward,
    match_normed_linears,
    match_projections,
)
from rdrr_runtime.compile.values import Values
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.kv_cache import KvCache


@dataclass(frozen=True)
class Lowered:
    """The launches of one pass.

    Attributes:
        body: Everything up to the last layer.
        head: The final norm and the logits.
        sample: The argmax and the step's advance; of a pass with picks, the most probable id and
            the entropy of each row.
        logits: f32 [1 or rows, vocab].
        decisions: What serves each op and why, in order.
    """

    body: tuple[Dispatch, ...]
    head: tuple[Dispatch, ...]
    sample: tuple[Dispatch, ...]
    logits: BufferSlice
    decisions: tuple[Decision, ...]


def lower(model: Model, spec: PassSpec, ctx: OpContext, cache: KvCache) -> Lowered:
    """Return the launches of a pass of up to `ctx.max_rows` token rows.

    Args:
        model: A graph with its memory.
        spec: Which pass.
        ctx: State of the step, features and limits.
        cache: Keys and values.

    Raises:
        FormatError: An op that the runtime cannot compute.
    """
    graph = model.graph
    check_fields(graph.ops)
    *_, norm, head = graph.ops
    assert isinstance(norm, Norm), "the graph ends with a norm"
    assert isinstance(head, Head), "and the head"
    whole = Body.of(graph.ops)
    body = Body(whole.ops[:-2], whole.readers, whole.last_reader)
    values = Values(model.workspace, Counter(whole.readers))
    build = PassBuilder(model, spec, ctx, cache, body, values)
    index = 0
    while index < len(body.ops):
        index += _serve(build, index)
    layers = len(build.dispatches)
    ended = lower_head(build, norm, head)
    logits = len(build.dispatches)
    lower_sample(build, ended, head.weight.shape[0])
    made = tuple(build.dispatches)
    decisions = tuple(build.decisions)
    return Lowered(made[:layers], made[layers:logits], made[logits:], ended.logits, decisions)


def _serve(build: PassBuilder, index: int) -> int:
    """Serve the longest run of ops from `index` on that can be served; how many that is."""
    served = _serve_pattern(build, index) if build.model.fuses else 0
    if served:
        return served
    branch = match_branch(build.body, index)
    if branch is not None:
        lower_branch(build, branch)
        return branch.count
    lower_op(build, build.body.ops[index])
    return 1


def _serve_pattern(build: PassBuilder, index: int) -> int:
    """Serve a run of ops that a few launches compute together; 0 where none is or can be."""
    block = match_attention_block(build.body, index)
    if block is not None and serve_attention_block(build, block):
        return block.count
    gated = match_gated_feed_forward(build.body, index)
    served = serve_gated(build, gated) if gated is not None else 0
    if served:
        return served
    normed = match_normed_linears(build.body, index)
    if normed is None:
        return 0
    return serve_normed_linears(build, normed, match_projections(build.body, index))
