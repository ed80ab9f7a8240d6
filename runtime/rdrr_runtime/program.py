"""Bound passes of one model: lowered once, replayed for every token.

Three kinds of pass exist, each for its own number of token rows: `decode` (1), `prefill` (a chunk
of the prompt), `score` (logits of every row, for evaluation). A kind is lowered and bound when it
is first needed. This module does not decide what to run when; `rdrr_runtime.gpu` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rdrr_manifests.graph import Graph

from rdrr_runtime.buffers import Arena, BufferSlice
from rdrr_runtime.device import BoundDispatch, Device
from rdrr_runtime.fuse import DECODE_FUSIONS
from rdrr_runtime.kernels._context import OpContext, State
from rdrr_runtime.kvcache import KvCache
from rdrr_runtime.lower import Lowering, Workspace
from rdrr_runtime.rope import rope_table
from rdrr_runtime.weights import Weights

SCORE_ROWS = 64
"""Rows of a `score` pass: their logits are all kept, and a vocabulary can be large."""

Bound = tuple[BoundDispatch, ...]


@dataclass(frozen=True)
class Pass:
    """One kind of pass, bound.

    Attributes:
        rows: Most token rows it takes.
        body: Everything up to the last layer.
        head: Final norm and logits.
        sample: Argmax and the step's advance.
        logits: f32 [1 or rows, vocab].
    """

    rows: int
    body: Bound
    head: Bound
    sample: Bound
    logits: BufferSlice

    # The device keeps a replayed tuple ready to encode, so these must be the same object each time.
    @cached_property
    def to_logits(self) -> Bound:
        """Body and head."""
        return (*self.body, *self.head)

    @cached_property
    def to_token(self) -> Bound:
        """Body, head and argmax."""
        return (*self.body, *self.head, *self.sample)


class Program:
    """All passes of a model on a device.

    Args:
        device: Where it runs.
        arena: Owner of the buffers.
        graph: What it computes.
        weights: Matrices and vectors.
        cache: Key-value cache.
        state: Buffers of the step.
        chunk: Token rows of a prefill pass.
        int8: Whether block-quantized matrices may be multiplied in int8.
        fused: Whether the decode pass uses the fused kernels.
    """

    def __init__(
        self,
        device: Device,
        arena: Arena,
        graph: Graph,
        weights: Weights,
        cache: KvCache,
        state: State,
        chunk: int,
        *,
        int8: bool = False,
        fused: bool = True,
    ) -> None:
        self._int8 = int8
        self._fused = fused
        self._device = device
        self._graph = graph
        self._weights = weights
        self._cache = cache
        self._state = state
        self._rows = {"decode": 1, "prefill": chunk, "score": min(SCORE_ROWS, chunk)}
        self._workspace = Workspace(arena, chunk)
        self._passes: dict[str, Pass] = {}
        self._ropes = tuple(
            arena.upload(f"rope.{index}", rope_table(spec, cache.spec.context))
            for index, spec in enumerate(graph.ropes)
        )

    def get(self, kind: str) -> Pass:
        """The pass `decode`, `prefill` or `score`."""
        if kind not in self._passes:
            self._passes[kind] = self._bind(kind)
        return self._passes[kind]

    def _bind(self, kind: str) -> Pass:
        device, rows = self._device, self._rows[kind]
        ctx = OpContext(
            self._state, rows, device.features, device.limits["max-compute-workgroup-storage-size"]
        )
        lowered = Lowering(
            self._graph,
            ctx,
            self._weights,
            self._cache,
            self._ropes,
            self._workspace,
            all_rows=kind == "score",
            fusions=DECODE_FUSIONS if self._fused and kind == "decode" else (),
            int8=self._int8,
            max_buffers=device.limits["max-storage-buffers-per-shader-stage"],
        ).run()
        body, head, sample = (
            tuple(device.bind(one) for one in part)
            for part in (lowered.body, lowered.head, lowered.sample)
        )
        return Pass(rows, body, head, sample, lowered.logits)
