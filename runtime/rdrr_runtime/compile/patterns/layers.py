"""Patterns: runs of consecutive ops that fused kernels may serve together.

Matching is pure. It looks at ops and their operands, and knows no weights, kernels or devices. If
no kernel can serve a matched pattern, its ops are lowered one by one. The table `LOWERINGS` lists
every field that patterns take into account, so that an op with a new field is refused instead of
being computed without it. An op that no pattern knows simply ends a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rdrr_manifests.graph.ops import (
    Attention,
    Experts,
    GatedActivation,
    Linear,
    Norm,
    Op,
    PositionScale,
    Residual,
    Rope,
    Slice,
    values_read,
)


@dataclass(frozen=True)
class Body:
    """The ops of a graph, and the readers of their values.

    Attributes:
        ops: Ops in order of execution.
        readers: Number of ops that read each value.
        last_reader: Index of the last op that reads each value.
    """

    ops: tuple[Op, ...]
    readers: Mapping[str, int]
    last_reader: Mapping[str, int]

    @staticmethod
    def of(ops: Sequence[Op]) -> Body:
        """Count the readers of each value and return the body."""
        readers: Counter[str] = Counter()
        last: dict[str, int] = {}
        for index, op in enumerate(ops):
            for value in values_read(op):
                readers[value] += 1
                last[value] = index
        return Body(tuple(ops), readers, last)

    def at(self, index: int) -> Op | None:
        """Return the op at an index; None after the last op."""
        return self.ops[index] if index < len(self.ops) else None


@dataclass(frozen=True)
class Branch:
    """An op, together with the residual after it if there is one.

    Attributes:
        op: The op.
        residual: The residual that adds the op's output to the stream; None if the output is a
            value of its own.
    """

    op: Linear | Norm | Experts
    residual: Residual | None = None

    @property
    def count(self) -> int:
        """Number of ops."""
        return 1 if self.residual is None else 2


HeadOp = Norm | Rope | PositionScale | Slice
"""An op that changes the heads of queries or keys in place, or takes the queries out of heads that
also hold gates."""


@dataclass(frozen=True)
class NormedLinears:
    """A norm and all linears that read it.

    Attributes:
        norm: The norm.
        linears: The linears that read it, at least one.
        others: Norms, ropes and scales of heads between the linears; each reads the output of a
            linear or of another of these.
    """

    norm: Norm
    linears: tuple[Linear, ...]
    others: tuple[HeadOp, ...]

    @property
    def count(self) -> int:
        """Number of ops."""
        return 1 + len(self.linears) + len(self.others)


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


@dataclass(frozen=True)
class GatedFeedForward:
    """A gated feed-forward block: norm, gate and up, activation, and maybe the down projection.

    Attributes:
        norm: The norm before gate and up.
        linears: Gate and up, as two matrices or as one.
        activation: The activation that joins gate and up.
        down: The down projection; None if none follows directly.
    """

    norm: Norm
    linears: tuple[Linear, ...]
    activation: GatedActivation
    down: Branch | None

    @property
    def own_count(self) -> int:
        """Number of ops up to the activation."""
        return 2 + len(self.linears)


def match_branch(body: Body, index: int) -> Branch | None:
    """Match a linear, norm or mixture of experts, with the residual after it if there is one.

    The residual is included only if nothing else reads the op's output or the old value of the
    stream, so that the op can add to the stream in place.
    """
    op, following = body.at(index), body.at(index + 1)
    if not isinstance(op, Linear | Norm | Experts):
        return None
    if not isinstance(following, Residual) or following.branch != op.out or following.scale != 1.0:
        return Branch(op)
    alone = body.readers[op.out] == 1 and body.last_reader[following.x] == index + 1
    apart = following.x not in values_read(op)
    return Branch(op, following if alone and apart else None)


def match_normed_linears(body: Body, index: int, *, sliced: bool = False) -> NormedLinears | None:
    """Match a norm and all linears that read it, if only norms and ropes stand between them.

    No kernel fuses other norms than plain RMSNorm with the product after it.

    Args:
        body: The ops.
        index: Index of the norm.
        sliced: Whether slices may stand between the linears too.
    """
    norm = body.at(index)
    if not isinstance(norm, Norm) or norm.groups != 1 or not norm.is_plain:
        return None
    linears: list[Linear] = []
    others: list[HeadOp] = []
    for op in body.ops[index + 1 :]:
        if isinstance(op, Linear) and op.x == norm.out:
            linears.append(op)
        elif isinstance(op, HeadOp) and (sliced or not isinstance(op, Slice)):
            others.append(op)
        elif isinstance(op, Linear):
            return None  # a linear with another input interrupts the run
        else:
            break
    if not linears or body.readers[norm.out] != len(linears):
        return None
    known = {op.out for op in linears}
    for other in others:
        if other.x not in known:
            return None
        known.add(other.out)
    return NormedLinears(norm, tuple(linears), tuple(others))


def match_projections(body: Body, index: int, *, sliced: bool = False) -> Projections | None:
    """Match norm, (linear, head norm?, rope?, scale of queries?) twice, linear, attention.

    Args:
        body: The ops.
        index: Index of the norm.
        sliced: Whether a slice takes the queries out of heads that also hold gates.
    """
    normed = match_normed_linears(body, index, sliced=sliced)
    if normed is None or len(normed.linears) != 3:
        return None
    attention = body.at(index + normed.count)
    norms = tuple(op for op in normed.others if isinstance(op, Norm))
    ropes = tuple(op for op in normed.others if isinstance(op, Rope))
    scales = tuple(op for op in normed.others if isinstance(op, PositionScale))
    slices = tuple(op for op in normed.others if isinstance(op, Slice))
    if not isinstance(attention, Attention) or len(norms) not in (0, 2) or len(ropes) not in (0, 2):
        return None
    q, k, v = normed.linears
    if len(slices) != int(sliced) or not all(_takes_queries(op, q, attention) for op in slices):
        return None
    chains = [_chain(linear, (*slices, *norms, *ropes, *scales)) for linear in (q, k, v)]
    twice = {q.out} if sliced else set()  # the gates are read after attention
    if any(body.readers[name] != 1 + (name in twice) for chain in chains for name in chain):
        return None
    if [chain[-1] for chain in chains] != [attention.q, attention.k, attention.v]:
        return None
    are_plain = all(norm.is_plain and norm.width == attention.head_dim for norm in norms)
    same_norms = are_plain and len({(norm.eps, norm.unit_offset) for norm in norms}) <= 1
    same_ropes = len({(rope.table, rope.interleaved) for rope in ropes}) <= 1
    of_query = [scale.out for scale in scales] == chains[0][len(chains[0]) - len(scales) :]
    if not same_norms or not same_ropes or not of_query or len(scales) > 1 or len(chains[2]) > 1:
        return None
    return Projections(
        normed.norm,
        (q, k, v),
        (norms[0], norms[1]) if norms else None,
        (ropes[0], ropes[1]) if ropes else None,
        scales[0] if scales else None,
        attention,
        slices[0] if slices else None,
    )


def match_normed_projections(body: Body, index: int) -> NormedProjections | None:
    """Match a norm and all linears that read it, with the attention after them if one follows."""
    normed = match_normed_linears(body, index)
    return None if normed is None else NormedProjections(normed, match_projections(body, index))


def _takes_queries(op: Slice, q: Linear, attention: Attention) -> bool:
    """Return whether a slice takes the first half of each head, the other half being gates."""
    size = attention.head_dim
    return op.x == q.out and (op.groups, op.size, op.first, op.width) == (
        attention.heads,
        2 * size,
        0,
        size,
    )


def _chain(linear: Linear, steps: Sequence[HeadOp]) -> list[str]:
    """Return the successive values of a projection: its output, then that of each step in order."""
    chain = [linear.out]
    for step in steps:
        if step.x == chain[-1]:
            chain.append(step.out)
    return chain


def match_attention_block(body: Body, index: int) -> AttentionBlock | None:
    """Match projections, attention, its gate if there is one, and the projection of its output."""
    projections = match_projections(body, index) or match_projections(body, index, sliced=True)
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


def _match_gate(body: Body, index: int, projections: Projections) -> str | None:
    """Match the gates beside the queries and their product; return the name of its value."""
    gates, product, queries = body.at(index), body.at(index + 1), projections.queries
    attention = projections.attention
    if queries is None or not isinstance(gates, Slice) or not isinstance(product, GatedActivation):
        return None
    size = attention.head_dim
    beside = replace(queries, out=gates.out, first=size) == gates and body.readers[gates.out] == 1
    is_plain = product.activation == "sigmoid" and product.clamp is None and product.up_parts == 1
    is_plain = is_plain and product.gate_scale == 1.0
    reads = (product.gate, product.up) == (gates.out, attention.out)
    alone = body.readers[attention.out] == 1
    return product.out if beside and is_plain and reads and alone else None


def match_gated_feed_forward(body: Body, index: int) -> GatedFeedForward | None:
    """Match norm, gate and up, activation, and the projection after them.

    The projection is left out of the match if it does not read the activation, or not alone.
    """
    normed = match_normed_linears(body, index)
    if normed is None or normed.others:
        return None
    end = index + normed.count
    activation = body.at(end)
    if not isinstance(activation, GatedActivation) or activation.gate_scale != 1.0:
        return None
    operands = [name for name in (activation.gate, activation.up) if name is not None]
    if [linear.out for linear in normed.linears] != operands or any(
        linear.bias for linear in normed.linears
    ):
        return None
    down = match_branch(body, end + 1)
    reads = down is not None and isinstance(down.op, Linear) and down.op.x == activation.out
    alone = body.readers[activation.out] == 1
    return GatedFeedForward(
        normed.norm, normed.linears, activation, down if reads and alone else None
    )
