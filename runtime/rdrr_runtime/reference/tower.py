"""A vision tower in plain torch: the reference of the tests, and the tower of the CPU backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from rdrr_format.errors import GenerationError
from rdrr_manifests.graph import VisionGraph, ops, vision
from rdrr_manifests.package import Package
from torch import Tensor

from rdrr_runtime.images.patches import ImagePatches
from rdrr_runtime.images.places import Places
from rdrr_runtime.images.tower import ImageFeatures, merged_grid
from rdrr_runtime.reference.attention import attention
from rdrr_runtime.reference.ops import compute
from rdrr_runtime.reference.run import ReferenceMemory, ReferencePass
from rdrr_runtime.reference.threads import limited_threads

SCORES = 1 << 25
"""Scores of attention that are computed at a time; those of a large image would take gigabytes."""


class CpuTower:
    """The vision tower of a package with its weights dequantized to float32.

    Args:
        package: The package.

    Raises:
        GenerationError: The package has no tower.
    """

    def __init__(self, package: Package) -> None:
        graph = package.vision_graph
        if graph is None:
            raise GenerationError("the package has no vision tower", where=package.where)
        weights = {
            use.name: torch.from_numpy(np.ascontiguousarray(package.dequantize(use.name)))
            for use in graph.weights()
        }
        self._model = ReferenceTower(graph, weights)

    def encode(self, image: ImagePatches) -> ImageFeatures:
        """Return the features of an image, see `Tower.encode`."""
        return self._model.encode(image)


class ReferenceTower:
    """A tower with its weights.

    Args:
        graph: The graph of the tower.
        weights: Tensors by name, in their logical shapes, all of one floating-point type.
    """

    def __init__(self, graph: VisionGraph, weights: Mapping[str, Tensor]) -> None:
        self._graph, self._weights = graph, weights
        self._last_reads = {
            name: index for index, op in enumerate(graph.ops) for name in vision.values_of(op)
        }

    def encode(self, image: ImagePatches) -> ImageFeatures:
        """Return the features of an image.

        Raises:
            GenerationError: The tower cannot read these patches.
        """
        graph = self._graph
        places = Places.of(graph.vision, image)
        dtype = next(iter(self._weights.values())).dtype
        vision, tables = graph.vision, tuple[Tensor, ...]()
        if vision.rope_theta is not None:
            table = places.rope_table(vision.rope_theta, vision.head_dim)
            tables = (torch.from_numpy(table),)
        rows = torch.arange(len(places.rows))
        run = ReferencePass(ReferenceMemory(self._weights, tables, {}), rows, 0, rows)
        patches = torch.from_numpy(image.patches).to(dtype)
        with torch.no_grad(), limited_threads(len(rows) * graph.vision.hidden_size**2):
            for index, op in enumerate(graph.ops):
                run.values[op.out] = _compute(run, op, patches, places)
                self._forget(run, index)
        embeddings, *taps = (
            run.values[name].to(torch.float32).numpy() for name in (graph.embeddings, *graph.taps)
        )
        return ImageFeatures(embeddings, tuple(taps), merged_grid(graph.vision, image))

    def _forget(self, run: ReferencePass, index: int) -> None:
        """Release the values that no later op reads, which are hundreds of a large image."""
        for name in vision.values_of(self._graph.ops[index]):
            if self._last_reads[name] == index:
                run.values.pop(name, None)


def _compute(run: ReferencePass, op: vision.VisionOp, patches: Tensor, places: Places) -> Tensor:
    """Compute an op of a tower from the values before it."""
    match op:
        case vision.Patches():
            return patches
        case vision.InterpolatedPositions():
            rows = places.interpolation(op.grid, op.sampling)
            indices, weights = map(torch.from_numpy, rows)
            nearest = run.weight(op.weight)[indices.long()]
            return run.values[op.x] + (nearest * weights.unsqueeze(-1)).sum(dim=1)
        case vision.MergeRows():
            x = run.values[op.x]
            return x.reshape(-1, op.rows * x.shape[1])
        case vision.MeanOfParts():
            mean = op.factor * run.values[op.x].reshape(-1, op.parts, op.width).mean(dim=1)
            return mean if op.shift is None else mean - run.weight(op.shift)
        case ops.Attention():
            return torch.cat(list(_attend(run, op, places.frames)))
        case _:
            return compute(run, op)


def _attend(run: ReferencePass, op: ops.Attention, frames: int) -> Iterator[Tensor]:
    """Yield the attention of patches to those of their frame, some rows at a time."""
    names = [name for name in (op.q, op.k, op.v) if name is not None]
    q, k, v = (run.values[name].unflatten(-1, (op.heads, op.head_dim)) for name in names)
    for frame in zip(*(value.chunk(frames) for value in (q, k, v)), strict=True):
        queries, keys, values = frame
        step = max(1, SCORES // (op.heads * len(keys)))
        for rows in queries.split(step):
            parts = (rows, keys.transpose(0, 1), values.transpose(0, 1))
            yield attention(*parts, op.scale, causal=False).flatten(-2)
