"""Prompts for mixtures of experts in which no two experts are almost equally probable.

Where they are, rounding decides between them, and the outputs differ although nothing is wrong. So
the ids of a prompt are chosen one by one: an id is taken if each router chooses the same experts
for its row when the router's logits change a little.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

NOISE = 0.02
"""Standard deviation of the change, relative to that of the logits of a row; f16 moves a router's
logits by about a tenth of it."""

_CHANGES, _TRIES = 8, 64


def reference_memory(graph: Any, weights: Mapping[str, Any], context: int) -> Any:
    """Return the memory of the torch reference for one sequence, in the type of the weights."""
    import torch
    from rdrr_runtime.phases.attention.rope_tables import rope_table
    from rdrr_runtime.reference.forward import empty_cache
    from rdrr_runtime.reference.run import ReferenceMemory

    dtype = next(iter(weights.values())).dtype
    return ReferenceMemory(
        weights,
        [torch.from_numpy(rope_table(spec, context)) for spec in graph.ropes],
        {layer: empty_cache(cache, context, dtype) for layer, cache in graph.caches.items()},
        states=[torch.zeros(shape, dtype=dtype) for shape in graph.states],
    )


def clear_ids(folder: Path, rng: np.random.Generator, count: int, ids: range) -> list[int]:
    """Return the ids of a prompt for a model with experts.

    Args:
        folder: A package of the model in f32.
        rng: Chooses the ids, and the changes of the routers' logits.
        count: Number of ids.
        ids: The ids to choose from.
    """
    import torch
    from rdrr_manifests.package import open_package

    package = open_package(folder)
    weights = {
        use.name: torch.from_numpy(np.ascontiguousarray(package.dequantize(use.name)))
        for use in package.graph.weights()
    }
    memory = reference_memory(package.graph, weights, count)
    chosen: list[int] = []
    while len(chosen) < count:
        before = [state.clone() for state in memory.states]
        for tried in range(_TRIES):
            token = int(rng.integers(ids.start, ids.stop))
            if _is_clear(package.graph, memory, rng, token, len(chosen)) or tried == _TRIES - 1:
                break
            # Keys and values need no such care: the next try writes the same slot.
            for state, kept in zip(memory.states, before, strict=True):
                state.copy_(kept)
        chosen.append(token)
    return chosen


def _is_clear(graph: Any, memory: Any, rng: np.random.Generator, token: int, slot: int) -> bool:
    """Run one row, and return whether all routers choose clearly."""
    import torch
    from rdrr_runtime.reference.ops import compute
    from rdrr_runtime.reference.run import ReferencePass

    run = ReferencePass(memory, torch.tensor([token]), slot, torch.tensor([slot]))
    clear = True
    with torch.no_grad():
        for op in graph.ops:
            if type(op).__name__ == "Router":
                clear = clear and _chooses_clearly(run, op, rng)
            run.values[op.out] = compute(run, op)
    return clear


def _chooses_clearly(run: Any, op: Any, rng: np.random.Generator) -> bool:
    import torch
    from rdrr_runtime.reference.ops import linear
    from rdrr_runtime.reference.routing import route

    bias = None if op.bias is None else run.weight(op.bias)
    added = None if op.selection_bias is None else run.weight(op.selection_bias)
    logits = linear(run.values[op.x], run.weight(op.weight), bias)
    changes = torch.from_numpy(rng.standard_normal((_CHANGES, logits.shape[-1]))).to(logits.dtype)
    changed = torch.cat([logits, logits + NOISE * logits.std() * changes])
    experts, _ = route(op, changed, added)
    return bool((experts.sort(dim=-1).values == experts[0].sort().values).all())
