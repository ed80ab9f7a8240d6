"""The whole forward pass in torch, which computes the graph op by op without fusion.

The GPU's passes are tested against it, and in float32 it is the CPU backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from rdrr_manifests.graph import CacheShape, Graph
from rdrr_manifests.graph.ops import Op
from torch import Tensor

from rdrr_runtime.images.rows import F32, PassImages
from rdrr_runtime.packing import Segments
from rdrr_runtime.phases.attention.rope_tables import rope_rows, rope_table
from rdrr_runtime.reference.ops import compute
from rdrr_runtime.reference.run import KeptHidden, Observer, ReferenceMemory, ReferencePass
from rdrr_runtime.reference.threads import limited_threads


def empty_cache(
    shape: CacheShape, context: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return the two parts of a layer's cache, zeroed, each [kv_heads, context, width]."""
    first, second = (
        torch.zeros(shape.kv_heads, context, width, dtype=dtype, device=device)
        for width in shape.widths
    )
    return first, second


class ReferenceModel:
    """A graph with its weights and a key-value cache.

    Args:
        graph: The graph of the model.
        weights: Tensors by name, in their logical shapes, all of one floating-point type.
        context: Slots of the key-value cache, in tokens.
        observe: Called with each weight of a linear layer or expert and the rows it multiplies.
        hidden: Hidden states that the graph reads; None if it reads none.
        differentiable: Whether gradients can be computed, which needs a new model for each pass.

    Attributes:
        kept: Where each pass keeps the hidden states of its rows; None to keep none.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        context: int,
        observe: Observer | None = None,
        hidden: KeptHidden | None = None,
        *,
        differentiable: bool = False,
    ) -> None:
        self._graph = graph
        self._differentiable = differentiable
        self.kept = hidden
        sizes = [weight.numel() for weight in weights.values() if weight.dim() > 1]
        self._typical_weight = sum(sizes) // max(1, len(sizes))
        self._context = context
        like = next(iter(weights.values()))
        self._device = like.device
        tables = (rope_table(spec, context) for spec in graph.ropes)
        ropes = [torch.as_tensor(table).to(like.device) for table in tables]
        cache = {
            layer: empty_cache(spec, context, like.dtype, like.device)
            for layer, spec in graph.caches.items()
        }
        states = [like.new_zeros(shape) for shape in graph.states]
        self._memory = ReferenceMemory(weights, ropes, cache, observe, states, hidden)

    @property
    def cache(self) -> Mapping[int, tuple[Tensor, Tensor]]:
        """The two parts of the cache by layer, each [kv_heads, context, width]."""
        return self._memory.cache

    @property
    def states(self) -> Sequence[Tensor]:
        """The recurrent states, see `Graph.states`."""
        return self._memory.states

    def forward(
        self,
        ids: Sequence[int],
        base: int,
        *,
        positions: Sequence[int] | None = None,
        all_rows: bool = False,
        uncertain: int = 0,
        images: PassImages | None = None,
    ) -> Tensor:
        """Run a pass and return the logits of its last row, or of every row.

        Args:
            ids: Token ids; row r is stored in slot base + r and attends to the slots up to its own.
            base: Valid slots before this pass.
            positions: Position of each row for rope; base, base + 1... when None.
            all_rows: Return the logits of every row.
            uncertain: Number of last rows that recurrent states do not absorb.
            images: Features and positions of the rows; None for text at `positions`.

        Returns:
            [1, vocab], or [len(ids), vocab] with `all_rows`.
        """
        rows = range(base, base + len(ids)) if positions is None else positions
        run = ReferencePass(
            self._memory if images is None else self._placed(images),
            torch.tensor(ids, device=self._device),
            base,
            torch.tensor(rows if images is None else range(len(ids)), device=self._device),
            all_rows,
            uncertain=uncertain,
            images=images,
        )
        logits = self._compute(run, self._graph.ops)
        if self.kept is not None:
            self.kept.keep(run.slots, run.values[self._graph.ops[-2].out])
        return logits

    def hidden(self, ids: Sequence[int], base: int) -> Tensor:
        """Run a pass without the head and return the hidden states, [len(ids), width]."""
        positions = torch.arange(base, base + len(ids), device=self._device)
        rows = torch.tensor(ids, device=self._device)
        run = ReferencePass(self._memory, rows, base, positions)
        return self._compute(run, self._graph.ops[:-1])

    def hidden_of_texts(self, ids: Sequence[int], segments: Segments) -> Tensor:
        """Run packed texts without the head and return the hidden states, [len(ids), width]."""
        positions = torch.from_numpy(segments.positions()).to(self._device)
        rows = torch.tensor(ids, device=self._device)
        run = ReferencePass(self._memory, rows, 0, positions, segments=segments)
        return self._compute(run, self._graph.ops[:-1])

    def limited_threads(self, rows: int) -> AbstractContextManager[None]:
        """Limit torch's threads to what a typical product with `rows` rows justifies."""
        return limited_threads(rows * self._typical_weight)

    def _placed(self, images: PassImages) -> ReferenceMemory:
        """Return the memory with rope tables that have a row for each row of a pass."""
        tables = (rope_rows(spec, self._context, images.positions) for spec in self._graph.ropes)
        return replace(self._memory, ropes=[torch.from_numpy(table) for table in tables])

    def _compute(self, run: ReferencePass, ops: Sequence[Op]) -> Tensor:
        """Compute ops in order and return the value of the last one."""
        with torch.set_grad_enabled(self._differentiable), self.limited_threads(len(run.ids)):
            taken = () if run.images is None else tuple(run.images.features)
            features = dict(zip(self._graph.values_of_images(len(taken) - 1), taken, strict=False))
            for op in ops:
                run.values[op.out] = compute(run, op)
                if op.out in features:
                    run.values[op.out] = _with_images(run, op.out, features[op.out])
        return run.values[ops[-1].out]


def _with_images(run: ReferencePass, value: str, features: F32) -> Tensor:
    """Return a value whose rows of images are replaced, or, after a layer, added to."""
    assert run.images is not None, "only a pass with images has features"
    rows, given = run.values[value], torch.from_numpy(features)
    mask = torch.from_numpy(run.images.is_image)[:, None]
    return torch.where(mask, given if len(run.values) == 1 else rows + given, rows)
