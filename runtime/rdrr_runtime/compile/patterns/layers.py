"""Patterns: runs of consecutive ops that fused kernels may serve together.

Matching is pure. It looks at ops and their operands, and knows no weights, kernels or devices. If
no kernel can serve a matched pattern, its ops are lowered one by one. The table `LOWERINGS` lists
every field that patterns take into account, so that an op with a new field is refused instead of
being computed without it. An op that no pattern knows simply ends a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rdrr_manifests.graph.ops import (
    Experts,
    GatedActivation,
    Linear,
    Norm,
    Op,
    PositionScale,
    Residual,
    Rope,
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


HeadOp = Norm | Rope | PositionScale
"""An op that changes the heads of queries or keys in place."""


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


def is_row_norm(op: Op | None) -> bool:
    """Return whether an op is a norm of whole rows, which a product of one row can apply."""
    return isinstance(op, Norm) and op.groups == 1


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


def match_normed_linears(body: Body, index: int) -> NormedLinears | None:
    """Match a norm and all linears that read it, if only norms and ropes stand between them.

    For several rows no kernel fuses other norms than plain RMSNorm with the product after it.
    """
    norm = body.at(index)
    if not isinstance(norm, Norm) or norm.groups != 1 or not norm.is_plain:
        return None
    linears: list[Linear] = []
    others: list[HeadOp] = []
    for op in body.ops[index + 1 :]:
        if isinstance(op, Linear) and op.x == norm.out:
            linears.append(op)
        elif isinstance(op, HeadOp):
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


def match_gated_feed_forward(body: Body, index: int) -> GatedFeedForward | None:
    """Match norm, gate and up, activation, and the projection after them.

    The projection is left out of the match if it does not read the activation, or not alone.
    """
    normed = match_normed_linears(body, index)
    if normed is None or normed.others:
        return None
    end = index + normed.count
    activation = body.at(end)
    if not isinstance(activation, GatedActivation) or not activation.is_plain:
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


def may_compute(body: Body, norm: Norm | None, readers: int) -> bool:
    """Return whether the norm before a pattern may be computed by each of its readers."""
    if norm is None or body.readers[norm.out] == readers:
        return True
    return may_defer(body, norm)


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
