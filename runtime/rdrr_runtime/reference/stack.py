"""Texts of equal length that run together op by op: each op for all texts before the next op.

Rows of all texts are those of one product, so weights are read once, and only those of one op need
to be in memory. What belongs to a text alone (attention, states) is computed text by text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import Attention, LatentAttention, Op, Stateful, values_read
from torch import Tensor

from rdrr_runtime.phases.attention.rope_tables import rope_table
from rdrr_runtime.reference.ops import compute
from rdrr_runtime.reference.rows import sampled
from rdrr_runtime.reference.run import Observer, ReferenceMemory, ReferencePass
from rdrr_runtime.reference.threads import limited_threads

T = TypeVar("T")
SCORES = 1 << 24
"""Scores of attention that are computed at once."""

_OF_TEXTS = (Attention, LatentAttention, Stateful)


class _OnDemand(dict[int, T], Generic[T]):
    """Tensors by number that are allocated when they are first read."""

    def __init__(self, allocate: Callable[[int], T]) -> None:
        self._allocate = allocate

    def __missing__(self, number: int) -> T:
        self[number] = self._allocate(number)
        return self[number]


class TextStack:
    """A graph with a cache and states for each of several texts.

    Args:
        graph: The graph of the model.
        weights: Tensors by name, float32, in their logical shapes; each is read when it is needed.
        texts: Number of texts.
        context: Slots of a text.
        device: Device of torch, where the weights are.
        differentiable: Whether gradients of the logits can be computed.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        texts: int,
        context: int,
        *,
        device: torch.device | str = "cpu",
        differentiable: bool = False,
    ) -> None:
        def cache(layer: int) -> tuple[Tensor, Tensor]:
            shape = graph.caches[layer]
            first, second = (
                torch.zeros(texts, shape.kv_heads, context, width, device=device)
                for width in shape.widths
            )
            return first, second

        def state(number: int) -> Tensor:
            return torch.zeros(texts, *graph.states[number], device=device)

        self._graph, self._texts = graph, texts
        self._differentiable = differentiable
        ropes = [torch.as_tensor(rope_table(spec, context)).to(device) for spec in graph.ropes]
        self._memory = ReferenceMemory(weights, ropes, {})
        self._caches = _OnDemand(cache)
        self._states = _OnDemand(state)

    def walk(self, ids: Tensor) -> Iterator[tuple[Op, ReferencePass]]:
        """Yield each op, before it is computed, with the pass and the values still to be read.

        The values, weights, caches and states of earlier ops are freed; the head is not computed.

        Args:
            ids: Token ids, int [texts, rows].
        """
        ops = self._graph.ops
        last = {name: at for at, op in enumerate(ops) for name in values_read(op)}
        last_of_layer = {op.layer: at for at, op in enumerate(ops) if isinstance(op, _OF_TEXTS[:2])}
        run = self._begin(ids, 0)
        for at, op in enumerate(ops):
            yield op, run
            if at + 1 == len(ops):
                return
            self._compute(run, op)
            for name in [name for name in run.values if last.get(name, at) <= at]:
                del run.values[name]
            done = [layer for layer, end in last_of_layer.items() if end == at]
            for layer in done:
                self._caches.pop(layer, None)
            self._states.clear()

    def sample(self, starts: Tensor, length: int, seed: int) -> Tensor:
        """Continue texts with tokens sampled from the model's predictions.

        Args:
            starts: First tokens of each text, int [texts, rows].
            length: Tokens of a text at the end.
            seed: Seed of the choice.

        Returns:
            int [texts, length].
        """
        generator = torch.Generator("cpu").manual_seed(seed)
        ids, at = starts, 0
        while ids.shape[1] < length:
            run = self._begin(ids[:, at:], at)
            for op in self._graph.ops:
                self._compute(run, op)
            logits = run.values[self._graph.ops[-1].out].unflatten(0, (len(ids), -1))[:, -1]
            ids, at = torch.cat([ids, sampled(logits, generator)], 1), ids.shape[1]
        return ids

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits after each token of all texts, [texts, rows, vocab].

        Args:
            ids: Token ids, int [texts, rows].
        """
        values = self.through(self._graph.ops, ids, {})
        logits: Tensor = values[self._graph.ops[-1].out].unflatten(0, ids.shape)
        return logits

    def through(
        self, ops: Sequence[Op], ids: Tensor, values: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Compute some ops of all texts, from their first token, and return all values.

        Args:
            ops: The ops, in order; none reads the cache of another op before them.
            ids: Token ids, int [texts, rows].
            values: The values that ops before them computed, each [texts * rows, width].
        """
        self._caches.clear()
        self._states.clear()
        run = self._begin(ids, 0)
        run.values.update(values)
        for op in ops:
            self._compute(run, op)
        return run.values

    def observe(self, run: ReferencePass, op: Op, observer: Observer) -> None:
        """Compute an op only to see which rows its weights multiply."""
        memory = replace(run.memory, observe=observer)
        with torch.no_grad():
            compute(replace(run, memory=memory), op)

    def _begin(self, ids: Tensor, base: int) -> ReferencePass:
        texts, rows = ids.shape
        positions = torch.arange(base, base + rows, device=ids.device).repeat(texts)
        return ReferencePass(self._memory, ids.flatten(), base, positions, all_rows=True)

    def _compute(self, run: ReferencePass, op: Op) -> None:
        grad = torch.set_grad_enabled(self._differentiable)
        with grad, limited_threads(len(run.ids) << 16):
            parts = list(self._parts(run, op))
            computed = [self._compute_texts(run, op, part) for part in parts]
            run.values[op.out] = torch.cat(computed) if parts else compute(run, op)

    def _parts(self, run: ReferencePass, op: Op) -> Iterator[slice]:
        """Yield the texts that an op computes together; none if it computes each row alone."""
        if not isinstance(op, _OF_TEXTS):
            return
        count = 1
        if isinstance(op, Attention) and self._differentiable:
            # A part of a cache that gradients need must not share its memory with other parts.
            count = self._texts
        elif isinstance(op, Attention):
            rows = len(run.ids) // self._texts
            count = max(1, SCORES // (op.heads * rows * (run.base + rows)))
        for first in range(0, self._texts, count):
            yield slice(first, min(first + count, self._texts))

    def _compute_texts(self, run: ReferencePass, op: Op, part: slice) -> Tensor:
        rows = len(run.ids) // self._texts
        span = slice(part.start * rows, part.stop * rows)
        # Only attention itself computes several texts at once.
        texts = part.stop - part.start if isinstance(op, Attention) else None
        at = part if isinstance(op, Attention) else part.start
        caches = {}
        if isinstance(op, Attention | LatentAttention):
            first, second = self._caches[op.layer]
            caches[op.layer] = (first[at], second[at])
        # An op reads its own state only.
        states: Any = {op.state: self._states[op.state][at]} if isinstance(op, Stateful) else {}
        memory = replace(self._memory, cache=caches, states=states)
        values = {name: run.values[name][span] for name in values_read(op)}
        ids, positions = run.ids[span], run.positions[span]
        return compute(
            ReferencePass(memory, ids, run.base, positions, values=values, texts=texts), op
        )
