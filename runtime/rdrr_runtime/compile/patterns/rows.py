"""Patterns of layers whose kernels take one row only: attention and feed-forwards of more forms.

Products of one row apply LayerNorm as well as RMSNorm, or none, and attention of one row normalises
heads in more ways. A norm may have readers after the pattern, for example where attention and the
feed-forward are parallel; these compute it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_manifests.graph.ops import (
    Activation,
    Attention,
    GatedActivation,
    Linear,
    Norm,
    Op,
    PositionScale,
    Residual,
    Rope,
    values_read,
)

from rdrr_runtime.compile.patterns.layers import (
    AttentionBlock,
    Body,
    Branch,
    NormedLinears,
    Projections,
    match_branch,
)

_Step = Norm | Rope | PositionScale


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward with or without a gate.

    Attributes:
        norm: The norm before it; None if it reads a value as it is.
        linears: Gate and up, as two matrices or as one; or up alone.
        activation: The activation, of gate and up or of up alone.
        down: The down projection.
    """

    norm: Norm | None
    linears: tuple[Linear, ...]
    activation: GatedActivation | Activation
    down: Branch

    @property
    def count(self) -> int:
        """Number of ops."""
        return (self.norm is not None) + len(self.linears) + 1 + self.down.count


def is_row_norm(op: Op | None) -> bool:
    """Return whether an op is a norm of whole rows, which a product of one row can apply."""
    return isinstance(op, Norm) and op.groups == 1


def match_row_attention(body: Body, index: int) -> AttentionBlock | None:
    """Match a norm if there is one, projections, attention, and the projection of its output."""
    first = body.at(index)
    norm = first if isinstance(first, Norm) and is_row_norm(first) else None
    linears, steps, attention = _collect(body, index + (norm is not None))
    if attention is None or not linears or any(linear.x != linears[0].x for linear in linears):
        return None
    if norm is not None and norm.out != linears[0].x:
        return None
    projections = _projections(body, norm, linears, steps, attention)
    output = None if projections is None else match_branch(body, index + projections.count)
    if projections is None or output is None or not isinstance(output.op, Linear):
        return None
    alone = body.readers[attention.out] == 1 and output.op.x == attention.out
    return AttentionBlock(projections, output) if alone else None


def _collect(
    body: Body, index: int
) -> tuple[tuple[Linear, ...], tuple[_Step, ...], Attention | None]:
    """Return the linears, the steps of their heads, and the attention, if nothing else comes."""
    linears: list[Linear] = []
    steps: list[_Step] = []
    for op in body.ops[index:]:
        if isinstance(op, Linear):
            linears.append(op)
        elif isinstance(op, Norm | Rope | PositionScale):
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
    ends = [
        chain[-1].out if chain else linear.out
        for chain, linear in zip(chains, linears, strict=True)
    ]
    values = [*(linear.out for linear in linears), *(step.out for step in steps)]
    if ends != list(operands) or any(body.readers[name] != 1 for name in values):
        return None
    if sum(map(len, chains)) != len(steps):
        return None
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
        value_norm=value_norm if isinstance(value_norm, Norm) else None,
        norm_after_rope=kind == (Rope, Norm),
    )
    same_ropes = len({(rope.table, rope.interleaved) for rope in ropes}) < 2
    known = same_ropes and _are_known(norms, attention)
    return projections if known and _is_known_value(projections, value_steps) else None


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


def match_row_feed_forward(body: Body, index: int) -> FeedForward | None:
    """Match a norm if there is one, gate and up or up alone, an activation, and down."""
    first = body.at(index)
    norm = first if isinstance(first, Norm) and is_row_norm(first) else None
    at = index + (norm is not None)
    linears: list[Linear] = []
    while isinstance(op := body.at(at), Linear) and len(linears) < 2:
        linears.append(op)
        at += 1
    activation, down = body.at(at), match_branch(body, at + 1)
    if not linears or any(linear.x != linears[0].x for linear in linears):
        return None
    if norm is not None and norm.out != linears[0].x:
        return None
    if not isinstance(activation, GatedActivation | Activation) or not _joins(activation, linears):
        return None
    if down is None or not isinstance(down.op, Linear) or down.op.x != activation.out:
        return None
    values = (*(linear.out for linear in linears), activation.out)
    if any(body.readers[name] != 1 for name in values):
        return None
    return FeedForward(norm, tuple(linears), activation, down)


def _joins(activation: GatedActivation | Activation, linears: Sequence[Linear]) -> bool:
    """Return whether an activation reads exactly these linears, in a form that kernels compute."""
    written = [linear.out for linear in linears]
    if isinstance(activation, Activation):
        is_plain = not activation.parameters and activation.limit is None
        return written == [activation.x] and is_plain
    if any(linear.bias is not None for linear in linears):
        return False
    if activation.up_parts != 1 or activation.gate_scale != 1.0:
        return False
    return written == [value for value in (activation.gate, activation.up) if value is not None]


@dataclass(frozen=True)
class GatedInput:
    """A linear whose activated output gates a value of another origin.

    Attributes:
        linear: The linear.
        activation: The activation, whose `up` is the other value or a part of it.
    """

    linear: Linear
    activation: GatedActivation


def match_gated_input(body: Body, index: int) -> GatedInput | None:
    """Match a linear and the activation that multiplies it by a value of another origin."""
    linear, activation = body.at(index), body.at(index + 1)
    if not isinstance(linear, Linear) or not isinstance(activation, GatedActivation):
        return None
    alone = body.readers[linear.out] == 1 and activation.gate == linear.out
    is_plain = activation.clamp is None and activation.gate_scale == 1.0
    apart = activation.up is not None and is_plain
    return GatedInput(linear, activation) if alone and apart else None


def match_normed_products(body: Body, index: int) -> NormedLinears | None:
    """Match a norm of rows and all linears that read it, up to the last of them."""
    norm = body.at(index)
    if not isinstance(norm, Norm) or not is_row_norm(norm):
        return None
    linears: list[Linear] = []
    others: list[_Step] = []
    known: set[str] = set()
    for op in body.ops[index + 1 :]:
        if isinstance(op, Linear) and op.x == norm.out:
            linears.append(op)
        elif isinstance(op, Norm | Rope | PositionScale) and op.x in known:
            others.append(op)
        else:
            return None
        known.add(op.out)
        if len(linears) == body.readers[norm.out]:
            return NormedLinears(norm, tuple(linears), tuple(others))
    return None


def may_defer(body: Body, norm: Norm) -> bool:
    """Return whether all readers of a norm may compute it again.

    They must come before the op that changes the norm's input in place, and be no residual, which
    adds a branch to the output of the norm.
    """
    if any(isinstance(op, Residual) and norm.out in values_read(op) for op in body.ops):
        return False
    changed = [
        at
        for at, op in enumerate(body.ops)
        if norm.x in values_read(op) and not isinstance(op, Norm | Linear)
    ]
    return body.last_reader[norm.out] < min(changed, default=len(body.ops))
