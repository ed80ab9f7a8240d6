"""The whole forward pass in torch: it walks the graph op by op, one function for each kind.

It is the oracle of the GPU's program and, in float32, the CPU backend. It fuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from rdrr_manifests.graph import (
    Attention,
    Embed,
    Experts,
    GatedActivation,
    Graph,
    Head,
    Linear,
    Norm,
    Op,
    Residual,
    Rope,
    Router,
    SigmoidGate,
    WeightUse,
)
from torch import Tensor

from rdrr_runtime.phases.rope_tables import rope_table
from rdrr_runtime.reference import ops
from rdrr_runtime.reference.threads import limited_threads

ValueOp = (
    Embed
    | Norm
    | Linear
    | Rope
    | Attention
    | GatedActivation
    | Experts
    | SigmoidGate
    | Residual
    | Head
)
"""Ops whose value is a matrix of activations: all but the router."""


Observer = Callable[[WeightUse, Tensor], None]
"""Told of a weight and of the rows [n, K] that it is about to be multiplied with."""


class ReferenceModel:
    """A graph with its weights and a key-value cache.

    Args:
        graph: What to compute.
        weights: Tensors by name, in their logical shapes, all of one floating type.
        context: KV slots.
        observe: Told of every product of linear layers and experts.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        context: int,
        observe: Observer | None = None,
    ) -> None:
        self.observe = observe
        self._graph = graph
        self._weights = weights
        sizes = [one.numel() for one in weights.values() if one.dim() > 1]
        self._typical_weight = sum(sizes) // max(1, len(sizes))
        self._ropes = [torch.from_numpy(rope_table(spec, context)) for spec in graph.ropes]
        dtype = next(iter(weights.values())).dtype
        shape = (graph.layers, 2, graph.kv_heads, context, graph.head_dim)
        self.cache = torch.zeros(shape, dtype=dtype)

    def forward(
        self,
        ids: Sequence[int],
        base: int,
        *,
        positions: Sequence[int] | None = None,
        all_rows: bool = False,
    ) -> Tensor:
        """Logits of the last of `ids`, [1, vocab], or of every row.

        Args:
            ids: Token ids; row r is stored in KV slot base + r and sees the slots up to its own.
            base: Valid slots before this pass.
            positions: Position of each row for rope; base, base + 1... when None.
            all_rows: Logits of every row.
        """
        macs = len(ids) * self._typical_weight
        with torch.no_grad(), limited_threads(macs):
            return self._forward(ids, base, positions, all_rows)

    def _forward(
        self, ids: Sequence[int], base: int, positions: Sequence[int] | None, all_rows: bool
    ) -> Tensor:
        rows = torch.arange(base, base + len(ids)) if positions is None else torch.tensor(positions)
        run = _Pass(self, torch.tensor(ids), base, rows, all_rows)
        for op in self._graph.ops:
            run.step(op)
        return run.values["logits"]

    def weight(self, use: WeightUse) -> Tensor:
        """A tensor that an op reads."""
        return self._weights[use.name]

    def rope_table(self, index: int) -> Tensor:
        """One of the graph's rope tables, [context, pairs, 2]."""
        return self._ropes[index]


class _Pass:
    """Values of one pass over the graph."""

    def __init__(
        self, model: ReferenceModel, ids: Tensor, base: int, positions: Tensor, all_rows: bool
    ) -> None:
        self.model = model
        self.ids = ids
        self.base = base
        self.positions = positions
        self.all_rows = all_rows
        self.values: dict[str, Tensor] = {}
        self.routes: dict[str, tuple[Tensor, Tensor]] = {}

    def step(self, op: Op) -> None:
        """Compute one op's value."""
        if isinstance(op, Router):
            weight = self.model.weight(op.weight)
            self.routes[op.out] = ops.route(self.values[op.x], weight, op.top_k, op.normalize)
        else:
            self.values[op.out] = self._compute(op)

    def _compute(self, op: ValueOp) -> Tensor:
        values, weight = self.values, self.model.weight
        match op:
            case Embed():
                return ops.embed(self.ids, weight(op.weight), op.scale)
            case Norm():
                x = values[op.x].unflatten(-1, (op.groups, op.width))
                offset = 1.0 if op.unit_offset else 0.0
                return ops.rms_norm(x, weight(op.weight), op.eps, offset).flatten(-2)
            case Linear():
                self._observe(op.weight, values[op.x])
                bias = None if op.bias is None else weight(op.bias)
                return ops.linear(values[op.x], weight(op.weight), bias)
            case Rope():
                x = values[op.x].unflatten(-1, (op.heads, -1))
                return ops.rope(x, self.positions, self.model.rope_table(op.table)).flatten(-2)
            case Attention():
                return self._attend(op)
            case GatedActivation():
                gate, up = self._gate_and_up(op)
                return ops.gated_activation(gate, up, op.activation)
            case Experts():
                return self._experts(op)
            case SigmoidGate():
                return ops.sigmoid_gate(values[op.x], values[op.branch], weight(op.weight))
            case Residual():
                return values[op.x] + values[op.branch] * op.scale
            case Head():
                return self._head(op)

    def _attend(self, op: Attention) -> Tensor:
        end = self.base + len(self.ids)
        cache = self.model.cache[op.layer]
        for index, name in enumerate((op.k, op.v)):
            heads = self.values[name].unflatten(-1, (op.kv_heads, op.head_dim))
            cache[index, :, self.base : end] = heads.transpose(0, 1)
        return ops.attention(
            self.values[op.q].unflatten(-1, (op.heads, op.head_dim)),
            cache[0, :, :end],
            cache[1, :, :end],
            op.scale,
            base=self.base,
            window=op.window or 0,
            softcap=op.softcap or 0.0,
        ).flatten(-2)

    def _experts(self, op: Experts) -> Tensor:
        def expert(number: int) -> tuple[Tensor, Tensor, Tensor]:
            gate, up, down = (part[number] for part in (op.gates, op.ups, op.downs))
            return self.model.weight(gate), self.model.weight(up), self.model.weight(down)

        ids, shares = self.routes[op.router]

        def see(number: int, outer: Tensor, inner: Tensor) -> None:
            for part, rows in ((op.gates, outer), (op.ups, outer), (op.downs, inner)):
                self._observe(part[number], rows)

        x = self.values[op.x]
        return ops.experts(x, ids, shares, expert, op.activation, see)

    def _observe(self, use: WeightUse, rows: Tensor) -> None:
        if self.model.observe is not None:
            self.model.observe(use, rows)

    def _gate_and_up(self, op: GatedActivation) -> tuple[Tensor, Tensor]:
        if op.up is not None:
            return self.values[op.gate], self.values[op.up]
        gate, up = self.values[op.gate].split(op.width, dim=-1)
        return gate, up

    def _head(self, op: Head) -> Tensor:
        x = self.values[op.x] if self.all_rows else self.values[op.x][-1:]
        logits = ops.linear(x, self.model.weight(op.weight)) * op.scale
        return logits if op.softcap is None else ops.softcap(logits, op.softcap)
