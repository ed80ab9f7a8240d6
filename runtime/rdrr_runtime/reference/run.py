"""The state of one pass of the reference: its rows, the model, and the values computed so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from rdrr_manifests.graph import WeightUse
from torch import Tensor

from rdrr_runtime.images.rows import PassImages
from rdrr_runtime.packing import Segments

Observer = Callable[[WeightUse, Tensor], None]
"""A function called with a weight and the rows [n, K] it multiplies, before the product."""


@dataclass(frozen=True)
class KeptHidden:
    """The hidden states of the latest slots, which one graph keeps and another one reads.

    Attributes:
        states: [slots, width]; the state of slot s is row s mod slots.
        ahead: How many slots later a pass of this model keeps a state than the slot of its row: 0,
            or 1 for a draft head, which reads what it has kept in its next pass.
    """

    states: Tensor
    ahead: int = 0

    def read(self, slots: Tensor) -> Tensor:
        """Return the states of some slots, [rows, width]."""
        return self.states[slots % len(self.states)]

    def keep(self, slots: Tensor, rows: Tensor) -> None:
        """Keep the states of a pass; of more rows than there are slots the last ones."""
        count = len(self.states)
        self.states[(slots[-count:] + self.ahead) % count] = rows[-count:]


@dataclass(frozen=True)
class ReferenceMemory:
    """The tensors that all passes of a model share.

    Attributes:
        weights: Tensors by name, in their logical shapes, all of one floating-point type.
        ropes: The graph's rope tables, each [context, pairs, 2].
        cache: Keys and values by layer, each [kv_heads, context, width].
        observe: Called before every product of a linear layer or expert.
        states: The recurrent states, see `Graph.states`.
        hidden: The hidden states that are kept for a draft head; None if there is none.
    """

    weights: Mapping[str, Tensor]
    ropes: Sequence[Tensor]
    cache: Mapping[int, tuple[Tensor, Tensor]]
    observe: Observer | None = None
    states: Sequence[Tensor] = ()
    hidden: KeptHidden | None = None


@dataclass(frozen=True)
class ReferencePass:
    """One pass over a graph.

    Attributes:
        memory: The tensors that all passes of the model share.
        ids: Token ids, int [rows].
        base: Valid slots before this pass; row r is stored in slot base + r.
        positions: Position of each row for rope, int [rows].
        all_rows: Whether the head computes the logits of every row, or only of the last.
        values: The values computed so far, by name, each [rows, width].
        segments: The texts of the rows, which attend to their own text only; None for one text.
        uncertain: Number of last rows that a later pass may take back; states do not absorb them.
        images: Features of the rows that are images; None if all are text.
        texts: Number of texts of equal length, whose rows follow each other and attend to the rows
            of their own text; caches then have an axis of texts in front. None for one text.
    """

    memory: ReferenceMemory
    ids: Tensor
    base: int
    positions: Tensor
    all_rows: bool = False
    values: dict[str, Tensor] = field(default_factory=dict)
    uncertain: int = 0
    segments: Segments | None = None
    images: PassImages | None = None
    texts: int | None = None

    @property
    def slots(self) -> Tensor:
        """The slot of each row."""
        return torch.arange(self.base, self.base + len(self.ids), device=self.ids.device)

    @property
    def kept(self) -> int:
        """Number of first rows that the states absorb."""
        return len(self.ids) - self.uncertain

    def weight(self, use: WeightUse) -> Tensor:
        """Return the tensor that an op reads."""
        return self.memory.weights[use.name]

    def optional(self, use: WeightUse | None) -> Tensor | None:
        """Return the tensor that an op reads; None if it reads none."""
        return None if use is None else self.weight(use)

    def observe(self, use: WeightUse, rows: Tensor) -> None:
        """Call the observer, if there is one, with a weight and the rows [n, K] it multiplies."""
        if self.memory.observe is not None:
            self.memory.observe(use, rows)
