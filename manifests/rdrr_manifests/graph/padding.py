"""Padding of odd widths: the graph that is run where a width is not a multiple of 4.

The kernels read four values at a time. A model whose hidden or intermediate size is not a multiple
of 4 is therefore run as a model whose sizes are: rows and columns of zeros are added to its weights
when they are loaded. They add nothing to any sum, and the padding elements of the residual stream
stay zero. Only the mean of a norm depends on the number of elements: with W elements padded to P,

    x w / sqrt(sum / W + eps)  =  x (w sqrt(W / P)) / sqrt(sum / P + eps W / P)

so its weight and its epsilon are scaled. No published model is known to have such sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt

from rdrr_manifests.graph.ops import (
    Activation,
    Embed,
    Experts,
    GatedActivation,
    Graph,
    Head,
    Linear,
    Norm,
    Op,
    PositionEmbed,
    Recall,
    Router,
    SigmoidGate,
    WeightUse,
    uses,
)

LANES = 4
"""Values that kernels read at a time."""


@dataclass(frozen=True)
class VectorScale:
    """The change of a norm's weight w: it becomes factor * (w + offset) - offset."""

    factor: float
    offset: float


@dataclass(frozen=True)
class PaddedGraph:
    """A graph whose widths are multiples of 4.

    Attributes:
        graph: The graph; the shapes of its weights are those in GPU memory.
        scales: Changes of norm weights, by the name of the tensor.
    """

    graph: Graph
    scales: Mapping[str, VectorScale] = field(default_factory=dict)


def pad_widths(graph: Graph) -> PaddedGraph:
    """Return the graph with padded widths.

    It is the same graph if no width is odd, or if an odd one reaches an op that cannot be padded;
    the phase of that op then refuses its size.
    """
    widths = {graph.hidden_size}
    widths |= {op.weight.shape[-1] for op in graph.ops if isinstance(op, Embed)}
    widths |= {
        op.width
        for op in graph.ops
        if isinstance(op, GatedActivation | Experts)
        # A limit belongs to queries, keys or values, whose widths are not padded.
        or (isinstance(op, Activation) and op.limit is None)
    }
    odd = frozenset(width for width in widths if width % LANES)
    if not odd:
        return PaddedGraph(graph)
    padding = _Padding(odd)
    ops: list[Op] = []
    scales: dict[str, VectorScale] = {}
    for op in graph.ops:
        padded = padding.op(op)
        if padded is None:
            return PaddedGraph(graph)
        if isinstance(op, Norm) and padded != op and op.weight is not None:
            factor = sqrt(op.width / padding.up(op.width))
            scales[op.weight.name] = VectorScale(factor, float(op.unit_offset))
        ops.append(padded)
    return PaddedGraph(replace(graph, ops=tuple(ops)), scales)


@dataclass(frozen=True)
class _Padding:
    """The padding of some widths, wherever a dimension has one of them.

    Attributes:
        odd: The widths that are padded.
    """

    odd: frozenset[int]

    def up(self, size: int) -> int:
        """Return a size, rounded up if it is one of the odd widths."""
        return -(-size // LANES) * LANES if size in self.odd else size

    def op(self, op: Op) -> Op | None:
        """Return an op with padded widths; None if it has an odd one that cannot be padded."""
        match op:
            case Embed() | PositionEmbed() | Router() | SigmoidGate() | Head():
                return replace(op, weight=self._columns(op.weight))
            case Linear():
                bias = None if op.bias is None else self._all(op.bias)
                return replace(op, weight=self._all(op.weight), bias=bias)
            case Norm():
                return self._norm(op)
            case GatedActivation():
                has_halves = op.up is None or op.up_parts > 1  # which would move within a row
                if has_halves and op.width in self.odd:
                    return None
                return replace(op, width=self.up(op.width))
            case Activation():
                return replace(op, width=self.up(op.width))
            case Experts():
                # The halves of a fused matrix would move within its rows.
                return None if op.fused and op.width in self.odd else self._experts(op)
            case Recall():
                return None if op.width in self.odd else op
        return None if self.odd & {size for use in uses(op) for size in use.shape} else op

    def _norm(self, op: Norm) -> Norm | None:
        if op.width not in self.odd:
            return op
        if not op.is_plain or op.groups > 1 or op.weight is None:
            return None
        # The zeros of the padding lower the mean square by width / padded width. With eps lowered
        # likewise, only a constant factor is left, which `VectorScale` takes out of the weight.
        eps = op.eps * op.width / self.up(op.width)
        return replace(op, weight=self._columns(op.weight), eps=eps)

    def _experts(self, op: Experts) -> Experts:
        def bias(use: WeightUse | None) -> WeightUse | None:
            return None if use is None else self._columns(use)

        def each(matrices: tuple[WeightUse, ...]) -> tuple[WeightUse, ...]:
            return tuple(map(self._all, matrices))

        return replace(
            op,
            gates=each(op.gates),
            ups=each(op.ups),
            downs=each(op.downs),
            width=self.up(op.width),
            gate_bias=bias(op.gate_bias),
            up_bias=bias(op.up_bias),
            down_bias=bias(op.down_bias),
        )

    def _columns(self, use: WeightUse) -> WeightUse:
        return replace(use, shape=(*use.shape[:-1], self.up(use.shape[-1])))

    def _all(self, use: WeightUse) -> WeightUse:
        return replace(use, shape=tuple(map(self.up, use.shape)))
