"""Compute a few graph ops by the phases that they are lowered to and by the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import Graph, RopeSpec
from rdrr_manifests.graph.ops import Head, Op, uses
from rdrr_manifests.graph.padding import PaddedGraph
from rdrr_manifests.models import Tensor
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.compile.lowering.builder import LoadedModel, PassBuilder
from rdrr_runtime.compile.lowering.head import lower_head
from rdrr_runtime.compile.lowering.ops import check_fields, lower_op
from rdrr_runtime.compile.lowering.values import Values, Workspace
from rdrr_runtime.compile.pass_spec import Logits, PassSpec
from rdrr_runtime.compile.patterns.layers import Body
from rdrr_runtime.compile.weights.upload import allocate_weights
from rdrr_runtime.packing import Segments
from rdrr_runtime.phases.attention.rope_tables import rope_table
from rdrr_runtime.phases.cache.kept_hidden import KeptHidden
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.reference import run as reference
from rdrr_runtime.reference.forward import empty_cache
from rdrr_runtime.reference.ops import compute
from rdrr_runtime.reference.run import ReferenceMemory, ReferencePass
from support.gpu import F32, Bench, normal

KV_HEADS, HEAD_DIM, VOCAB, CONTEXT, BASE = 2, 16, 24, 8, 1
HIDDEN, KEPT_SLOTS = 20, 5
"""Width and number of the kept hidden states; the slots of 5 rows from `BASE` on wrap around."""
ROPE = RopeSpec(1e4, HEAD_DIM, HEAD_DIM)


@dataclass(frozen=True)
class Example:
    """Consecutive ops and the external values that they read.

    Attributes:
        ops: The ops in order; the value of the last one is compared.
        widths: Row width in elements of each value that none of the ops writes.
    """

    ops: tuple[Op, ...]
    widths: Mapping[str, int]

    @property
    def graph(self) -> Graph:
        """Return a graph that consists of these ops."""
        return Graph(self.ops, (ROPE,), 1, 0, VOCAB, CONTEXT)

    @property
    def packs_texts(self) -> bool:
        """Return whether the rows are those of several texts, which begin at slot 0."""
        return any(
            not getattr(op, "causal", True) or getattr(op, "by_type", False) for op in self.ops
        )

    @property
    def base(self) -> int:
        """Return the slot of the first row."""
        return 0 if self.packs_texts else BASE

    def segments(self, rows: int) -> Segments | None:
        """Return the texts of the rows: the first one, and all others, of type 1."""
        if not self.packs_texts:
            return None
        ends = np.unique([min(rows, 1), rows])
        return Segments(ends, (np.arange(rows) > 0).astype(np.int64))


@dataclass(frozen=True)
class Operands:
    """Random operands of an example.

    Attributes:
        tokens: Token ids of the rows.
        values: External values by name, f32 [rows, width].
        weights: Weights by name, f32.
        hidden: Kept hidden states, f32 [KEPT_SLOTS, HIDDEN].
    """

    tokens: Sequence[int]
    values: Mapping[str, F32]
    weights: Mapping[str, F32]
    hidden: F32

    @staticmethod
    def random(example: Example, rows: int, rng: np.random.Generator) -> Operands:
        """Return random operands; the weights are scaled so that products stay near 1."""
        weights = [use for op in example.ops for use in uses(op)]
        return Operands(
            rng.integers(0, VOCAB, rows).tolist(),
            {name: normal(rng, rows, width) for name, width in example.widths.items()},
            {
                use.name: normal(rng, *use.shape) / np.float32(use.shape[-1] ** 0.5)
                for use in weights
            },
            normal(rng, KEPT_SLOTS, HIDDEN),
        )


class _Weights:
    """The part of a package that `allocate_weights` reads, with all weights in F32."""

    def __init__(self, weights: Mapping[str, F32]) -> None:
        self._weights = weights

    def tensor(self, name: str) -> Tensor:
        values = self._weights[name]
        return Tensor(shape=values.shape, dtype="F32", size=values.nbytes, shard=0, offset=0)

    def dequantize(self, name: str) -> F32:
        return self._weights[name]

    def read_rows(self, name: str, first: int, count: int) -> np.ndarray[Any, Any]:
        return self._weights[name][first : first + count].view(np.uint8)


def lowered(bench: Bench, example: Example, operands: Operands) -> tuple[list[Phase], BufferSlice]:
    """Return the phases of an example, and the buffer of the value of its last op."""
    rows, graph = len(operands.tokens), example.graph
    check_fields(example.ops)
    preferences = Preferences(resolve({}), software=True)
    package = cast(Any, _Weights(operands.weights))
    weights = allocate_weights(bench.arena, package, PaddedGraph(graph), preferences)
    weights.fill()
    workspace, body = Workspace(bench.arena, rows), Body.of(example.ops)
    ropes = tuple(bench.upload(rope_table(spec, CONTEXT)) for spec in graph.ropes)
    kept = KeptHidden(bench.upload(operands.hidden), KEPT_SLOTS, HIDDEN)
    limit = bench.device.max_binding
    model = LoadedModel(graph, weights, ropes, workspace, preferences, limit, hidden=kept)
    build = PassBuilder(
        model,
        PassSpec("example", rows, Logits.ALL),
        bench.context(
            rows, base=example.base, tokens=operands.tokens, segments=example.segments(rows)
        ),
        KvCache.allocate(bench.arena, graph, CONTEXT, "f32"),
        body,
        Values(workspace, Counter(body.readers)),
    )
    for name, value in operands.values.items():
        bench.device.write(build.values.allocate(name, value.shape[1]), value)
    *before, last = example.ops
    if isinstance(last, Head):
        out = lower_head(build, cast(Any, before[-1]), last).logits
    else:
        for op in example.ops:
            lower_op(build, op)
        out = build.values.get(last.out)
    return build.phases, out


def by_phases(bench: Bench, example: Example, operands: Operands) -> F32:
    """Return the value of the last op, [rows, width], computed on the device by phases."""
    phases, out = lowered(bench, example, operands)
    rows = len(operands.tokens)
    bench.run(phases, rows)
    result = bench.device.read(out).view(np.float32)
    width = len(result) // rows
    return result.reshape(rows, width)


def by_reference(example: Example, operands: Operands) -> F32:
    """Return the value of the last op, [rows, width], computed in float64."""
    weights = {name: torch.from_numpy(weight).double() for name, weight in operands.weights.items()}
    ropes = [torch.from_numpy(rope_table(ROPE, CONTEXT))]
    graph, double = example.graph, torch.float64
    cache = {at: empty_cache(shape, CONTEXT, double) for at, shape in graph.caches.items()}
    states = [torch.zeros(shape, dtype=double) for shape in graph.states]
    count, base = len(operands.tokens), example.base
    rows = torch.arange(base, base + count)
    kept = reference.KeptHidden(torch.from_numpy(operands.hidden).double())
    run = ReferencePass(
        ReferenceMemory(weights, ropes, cache, states=states, hidden=kept),
        torch.tensor(operands.tokens),
        base,
        rows,
        True,
        segments=example.segments(count),
    )
    run.values.update({name: torch.from_numpy(v).double() for name, v in operands.values.items()})
    for op in example.ops:
        run.values[op.out] = compute(run, op)
    return run.values[example.ops[-1].out].numpy()
