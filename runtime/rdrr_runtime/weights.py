"""A package's tensors in GPU memory, in the form that kernels read.

Matrices keep their stored type; what no kernel reads as it is stored (blocks that cross rows, rare
types) is expanded to F32 here, once, and says so. Which kernel reads a matrix is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_manifests.graph import Graph, Linear, Norm, WeightUse
from rdrr_manifests.models import Tensor
from rdrr_manifests.package import Package

from rdrr_runtime.buffers import Arena, BufferSlice
from rdrr_runtime.packing import GPU_DTYPES, GpuWeight, upload_weight

CHUNK_BYTES = 16 << 20
"""Stored bytes read from the package at a time, so that loading does not double host memory."""


@dataclass
class Weights:
    """What a program binds.

    Attributes:
        arena: Owner of the buffers.
        matrices: By tensor name; a tied head is the embedding's entry.
        vectors: Norm weights and biases as f32, by tensor name.
        expanded: Names of matrices that could not stay in their stored form.
        host_vectors: The vectors on the host, to be joined.
    """

    arena: Arena
    matrices: dict[str, GpuWeight] = field(default_factory=dict)
    vectors: dict[str, BufferSlice] = field(default_factory=dict)
    expanded: list[str] = field(default_factory=list)
    host_vectors: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def joined(self, names: Sequence[str]) -> BufferSlice:
        """Several vectors one after the other, in a buffer made once."""
        name = "+".join(names)
        if name not in self.vectors:
            data = np.concatenate([self.host_vectors[one] for one in names])
            self.vectors[name] = self.arena.upload(name, data)
        return self.vectors[name]

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        return sum(one.size for one in self.matrices.values()) + sum(
            one.size for one in self.vectors.values()
        )


def load_weights(arena: Arena, package: Package, graph: Graph) -> Weights:
    """Upload every tensor that the graph reads.

    Raises:
        ShardError: Bytes are missing.
        DeviceError: The adapter has too little memory or cannot bind a row.
    """
    weights = Weights(arena)
    vectors = {use.name for use in _vector_uses(graph)}
    for use in graph.weights():
        if use.name in vectors:
            data = np.ascontiguousarray(package.dequantize(use.name), dtype=np.float32)
            weights.vectors[use.name] = arena.upload(use.name, data)
            weights.host_vectors[use.name] = data
        else:
            weights.matrices[use.name] = _upload_matrix(arena, package, use, weights.expanded)
    return weights


def _vector_uses(graph: Graph) -> Iterator[WeightUse]:
    for op in graph.ops:
        if isinstance(op, Norm):
            yield op.weight
        elif isinstance(op, Linear) and op.bias is not None:
            yield op.bias


def _upload_matrix(
    arena: Arena, package: Package, use: WeightUse, expanded: list[str]
) -> GpuWeight:
    tensor = package.tensor(use.name)
    dtype, layout = tensor.parsed_dtype(), tensor.parsed_layout()
    n, k = use.shape
    if layout is Layout.FLAT and k % dtype.block_elements == 0:
        layout = Layout.ROW  # blocks that do not cross rows: the bytes are the same
    if layout is Layout.FLAT or dtype.name not in GPU_DTYPES:
        expanded.append(use.name)
        return _expand(arena, package, use)
    chunks = _stored_rows(package, use.name, tensor)
    return upload_weight(arena, dtype, layout, (n, k), chunks, use.name)


def _expand(arena: Arena, package: Package, use: WeightUse) -> GpuWeight:
    n, k = use.shape
    values = np.ascontiguousarray(package.dequantize(use.name), dtype="<f4")
    return upload_weight(arena, DTYPES["F32"], Layout.ROW, (n, k), values.view(np.uint8), use.name)


def _stored_rows(package: Package, name: str, tensor: Tensor) -> Iterator[npt.NDArray[np.uint8]]:
    stored = tensor.geometry()
    step = max(1, CHUNK_BYTES // max(stored.row_bytes, 1))
    for first in range(0, stored.rows, step):
        yield package.read_rows(name, first, min(step, stored.rows - first))
