"""Patterns of layers whose kernels take one row only, such as feed-forwards of more forms.

Products of one row apply LayerNorm as well as RMSNorm, or none. A norm may have readers after the
pattern, for example where attention and the feed-forward are parallel; these compute it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_manifests.graph.ops import (
    Activation,
    GatedActivation,
    Linear,
    Norm,
    PositionScale,
    Rope,
)

from rdrr_runtime.compile.patterns.layers import (
    Body,
    Branch,
    HeadOp,
    NormedLinears,
    is_row_norm,
    match_branch,
)


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
    if not activation.is_plain:
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
    others: list[HeadOp] = []
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
