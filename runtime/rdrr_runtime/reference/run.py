"""One pass of the reference: its rows, the model behind it, and the values computed so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rdrr_manifests.graph import WeightUse
from torch import Tensor

Observer = Callable[[WeightUse, Tensor], None]
"""Told of a weight and of the rows [n, K] that it is about to be multiplied with."""


@dataclass(frozen=True)
class ReferenceMemory:
    """What the passes of a model share.

    Attributes:
        weights: Tensors by name, in their logical shapes, all of one floating type.
        ropes: The graph's rope tables, each [context, pairs, 2].
        cache: Keys and values, [layers, 2, kv_heads, context, head_dim].
        observe: Told of every product of linear layers and experts.
    """

    weights: Mapping[str, Tensor]
    ropes: Sequence[Tensor]
    cache: Tensor
    observe: Observer | None = None


@dataclass(frozen=True)
class ReferencePass:
    """One pass over a graph.

    Attributes:
        memory: What the passes of the model share.
        ids: Token ids, int [rows].
        base: Valid slots before this pass; row r is stored in slot base + r.
        positions: Position of each row for rope, int [rows].
        all_rows: Whether the head computes every row, or only the last.
        values: The values so far, each [rows, width].
    """

    memory: ReferenceMemory
    ids: Tensor
    base: int
    positions: Tensor
    all_rows: bool = False
    values: dict[str, Tensor] = field(default_factory=dict)

    def weight(self, use: WeightUse) -> Tensor:
        """Return a tensor that an op reads."""
        return self.memory.weights[use.name]

    def observe(self, use: WeightUse, rows: Tensor) -> None:
        """Tell the observer of a weight and of the rows [n, K] that it is multiplied with."""
        if self.memory.observe is not None:
            self.memory.observe(use, rows)
