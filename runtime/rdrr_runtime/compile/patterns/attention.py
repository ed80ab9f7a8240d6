"""The pattern of attention: a norm if there is one, projections, attention, and what follows it.

Kernels of one row apply LayerNorm as well as RMSNorm, or none, and normalise heads in more ways
than those of several rows; `Projections.is_usual` tells them apart. A norm may have readers after
the pattern, for example where attention and the feed-forward are parallel; these compute it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_manifests.graph.ops import (
    Attention,
    GatedActivation,
    Linear,
    Norm,
    PositionScale,
    Rope,
    Slice,
)

from rdrr_runtime.compile.patterns.layers import (
    Body,
    Branch,
    HeadOp,
    NormedLinears,
    is_row_norm,
    match_branch,
    match_normed_linears,
)

_Step = HeadOp | Slice


@dataclass(frozen=True)
class Projections:
    """The ops from a layer's first norm to its attention.

    Attributes:
        norm: The norm before the projections; None if they read a value as it is.
        linears: The projections to queries, keys and values; that to queries alone if the keys and
            values are those of an earlier layer.
        head_norms: The norms of queries and of keys; None for none.
        ropes: Likewise the rotations.
        query_scale: The scale of the queries by their position; None for none.
        attention: The attention.
        queries: The slice that separates the queries from gates beside them; None without gates.
        value_norm: The norm of values, without a weight; None for none.
        norm_after_rope: Whether the norms of heads come after the rotation.
    """

    norm: Norm | None
    linears: tuple[Linear, ...]
    head_norms: tuple[Norm, ...] | None
    ropes: tuple[Rope, ...] | None
    query_scale: PositionScale | None
    attention: Attention
    queries: Slice | None = None
    value_norm: Norm | None = None
    norm_after_rope: bool = False

    @property
    def count(self) -> int:
        """Number of ops."""
        between = (self.head_norms or ()), (self.ropes or ()), self.linears
        single = (self.norm, self.query_scale, self.queries, self.value_norm)
        return 1 + sum(map(len, between)) + sum(op is not None for op in single)

    @property
    def spans_heads(self) -> bool:
        """Whether a norm of queries or keys is that of all heads together."""
        return any(norm.width != self.attention.head_dim for norm in self.head_norms or ())

    @property
    def is_usual(self) -> bool:
        """Whether kernels for several rows can compute it too."""
        usual = (
            self.norm is not None and self.norm.is_plain,
            len(self.linears) == 3,
            self.queries is None and self.value_norm is None,
            not (self.norm_after_rope or self.spans_heads),
        )
        return all(usual)


@dataclass(frozen=True)
class NormedProjections:
    """A plain norm and all linears that read it, which may be the projections of a layer.

    Attributes:
        linears: The norm and the linears.
        layer: The same up to the attention; None if they are no projections for attention.
    """

    linears: NormedLinears
    layer: Projections | None


@dataclass(frozen=True)
class AttentionBlock:
    """Projections, attention, its gate if there is one, and the projection of its output."""

    projections: Projections
    output: Branch

    @property
    def is_gated(self) -> bool:
        """Whether gates beside the queries multiply the output of attention."""
        return self.projections.queries is not None

    @property
    def count(self) -> int:
        """Number of ops."""
        return self.projections.count + self.output.count + (2 if self.is_gated else 0)


def match_attention_block(body: Body, index: int) -> AttentionBlock | None:
    """Match projections, attention, its gate if there is one, and the projection of its output."""
    projections = match_projections(body, index)
    if projections is None:
        return None
    end, value = index + projections.count, projections.attention.out
    if projections.queries is not None:
        gated = _match_gate(body, end, projections)
        if gated is None:
            return None
        end, value = end + 2, gated
    output = match_branch(body, end)
    if output is None or not isinstance(output.op, Linear) or body.readers[value] != 1:
        return None
    return AttentionBlock(projections, output) if output.op.x == value else None


def match_normed_projections(body: Body, index: int) -> NormedProjections | None:
    """Match a norm and all linears that read it, with the attention after them if one follows."""
    normed = match_normed_linears(body, index)
    if normed is None:
        return None
    layer = match_projections(body, index)
    return NormedProjections(normed, layer if layer is not None and layer.is_usual else None)


def match_projections(body: Body, index: int) -> Projections | None:
    """Match a norm if there is one, linears that read it with the steps of their heads, attention.

    The steps may be norms, rotations, a scale of the queries, and a slice that takes the queries
    out of heads that also hold gates.
    """
    first = body.at(index)
    norm = first if isinstance(first, Norm) and is_row_norm(first) else None
    linears, steps, attention = _collect(body, index + (norm is not None))
    if attention is None or not linears or any(linear.x != linears[0].x for linear in linears):
        return None
    if norm is not None and norm.out != linears[0].x:
        return None
    return _projections(body, norm, linears, steps, attention)


def _collect(
    body: Body, index: int
) -> tuple[tuple[Linear, ...], tuple[_Step, ...], Attention | None]:
    """Return the linears, the steps of their heads, and the attention, if nothing else comes."""
    linears: list[Linear] = []
    steps: list[_Step] = []
    for op in body.ops[index:]:
        if isinstance(op, Linear):
            linears.append(op)
        elif isinstance(op, _Step):
            steps.append(op)
        else:
            return tuple(linears), tuple(steps), op if isinstance(op, Attention) else None
    return (), (), None


def _projections(
    body: Body,
    norm: Norm | None,
    linears: tuple[Linear, ...],
    steps: Sequence[_Step],
    attention: Attention,
) -> Projections | None:
    """Return the projections if each is followed by its own steps, in an order that is known."""
    operands = (attention.q, attention.k, attention.v)[: len(linears)]
    if len(linears) not in (1, 3) or (len(linears) == 1) != (attention.k is None):
        return None
    chains = [_chain(linear, steps) for linear in linears]
    ends = [([linear, *chain][-1]).out for chain, linear in zip(chains, linears, strict=True)]
    if ends != list(operands) or sum(map(len, chains)) != len(steps):
        return None
    first = chains[0][0] if chains[0] else None
    queries = first if isinstance(first, Slice) else None
    gated = {linears[0].out} if queries is not None else set()  # gates are read after attention
    values = [*(linear.out for linear in linears), *(step.out for step in steps)]
    if any(body.readers[name] != 1 + (name in gated) for name in values):
        return None
    if queries is not None:
        del chains[0][0]
    queries_keys, value_steps = chains[:2], chains[2] if len(chains) == 3 else []
    scales = [step for step in queries_keys[0] if isinstance(step, PositionScale)]
    if len(scales) > 1 or (scales and queries_keys[0][-1] is not scales[0]):
        return None
    kinds = {tuple(type(step) for step in chain if step not in scales) for chain in queries_keys}
    if len(kinds) != 1 or not kinds <= {(), (Norm,), (Rope,), (Norm, Rope), (Rope, Norm)}:
        return None
    kind = kinds.pop()
    norms = tuple(step for chain in queries_keys for step in chain if isinstance(step, Norm))
    ropes = tuple(step for chain in queries_keys for step in chain if isinstance(step, Rope))
    value_norm = value_steps[0] if value_steps else None
    projections = Projections(
        norm,
        linears,
        norms or None,
        ropes or None,
        scales[0] if scales else None,
        attention,
        queries,
        value_norm if isinstance(value_norm, Norm) else None,
        kind == (Rope, Norm),
    )
    same_ropes = len({(rope.table, rope.interleaved) for rope in ropes}) < 2
    known = same_ropes and _are_known(norms, attention)
    if queries is not None and not (
        _takes_queries(queries, attention) and replace(projections, queries=None).is_usual
    ):
        return None
    return projections if known and _is_known_value(projections, value_steps) else None


def _takes_queries(op: Slice, attention: Attention) -> bool:
    """Return whether a slice takes the first half of each head, the other half being gates."""
    size = attention.head_dim
    return (op.groups, op.size, op.first, op.width) == (attention.heads, 2 * size, 0, size)


def _chain(linear: Linear, steps: Sequence[_Step]) -> list[_Step]:
    """Return the steps that follow a linear one after the other."""
    chain: list[_Step] = []
    value = linear.out
    for step in steps:
        if step.x == value:
            chain.append(step)
            value = step.out
    return chain


def _are_known(norms: Sequence[Norm], attention: Attention) -> bool:
    """Return whether norms of heads have a form that the kernel computes."""
    if any(not norm.is_plain for norm in norms):
        return False
    if len({(norm.eps, norm.unit_offset) for norm in norms}) > 1:
        return False
    size, counts = attention.head_dim, (attention.heads, attention.kv_heads)
    shapes = [(norm.groups, norm.width) for norm in norms]
    by_head = [(count, size) for count in counts][: len(shapes)]
    together = [(1, count * size) for count in counts][: len(shapes)]
    return shapes in (by_head, together)


def _is_known_value(projections: Projections, steps: Sequence[_Step]) -> bool:
    """Return whether the steps of the values are none, or a norm without a weight."""
    norm, norms, attention = projections.value_norm, projections.head_norms, projections.attention
    if not steps:
        return True
    if len(steps) > 1 or norm is None or norms is None or projections.spans_heads:
        return False
    unit = Norm("", "", None, norms[0].eps, False, attention.kv_heads, elements=attention.head_dim)
    return replace(norm, x="", out="") == unit


def _match_gate(body: Body, index: int, projections: Projections) -> str | None:
    """Match the gates beside the queries and their product; return the name of its value."""
    gates, product, queries = body.at(index), body.at(index + 1), projections.queries
    attention = projections.attention
    if queries is None or not isinstance(gates, Slice) or not isinstance(product, GatedActivation):
        return None
    size = attention.head_dim
    beside = replace(queries, out=gates.out, first=size) == gates and body.readers[gates.out] == 1
    is_plain = product.activation == "sigmoid" and product.clamp is None and product.is_plain
    reads = (product.gate, product.up) == (gates.out, attention.out)
    alone = body.readers[attention.out] == 1
    return product.out if beside and is_plain and reads and alone else None
