"""The upload of a package's tensors to GPU memory, in the form that kernels read.

Matrices keep their stored type unless `rdrr_runtime.compile.storage` decides otherwise. Matrices
that it wants expanded are decoded here once, a few rows at a time, and column-major matrices that
it wants row-major are transposed. Which kernel reads a matrix is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.dry_run import DryRunArena
from rdrr_format.codecs import CODECS
from rdrr_format.codecs.f16 import f16_overflow_count
from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_manifests.graph.ops import Experts, Graph, Linear, WeightKind, WeightUse
from rdrr_manifests.graph.padding import LANES, PaddedGraph, VectorScale
from rdrr_manifests.models import Tensor
from rdrr_manifests.package import Package

from rdrr_runtime.compile.decision import Decision
from rdrr_runtime.compile.padded_weights import (
    is_padded,
    padded_dtype,
    padded_matrix,
    padded_vector,
)
from rdrr_runtime.compile.preferences import Preferences
from rdrr_runtime.compile.storage import Storage, choose_storage, has_row_scales
from rdrr_runtime.phases.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.packing import Uploader
from rdrr_runtime.phases.row_scales import row_scales

CHUNK_BYTES = 16 << 20
"""Bytes read or decoded at a time, so that loading does not double host memory."""

Bytes = npt.NDArray[np.uint8]


@dataclass
class Weights:
    """The weights of a model in GPU memory.

    Attributes:
        blocks: Owner of the matrices.
        others: Owner of the vectors and of the row scales, which are computed from matrices.
        matrices: Matrices by tensor name; a tied head shares the entry of the embedding.
        vectors: Norm weights and biases in f32, by tensor name.
        stacks: The concatenated matrices of all experts of a layer, by the name of the first.
        decisions: Which matrices were changed at load, and why.
    """

    blocks: Arena
    others: Arena
    matrices: dict[str, GpuWeight] = field(default_factory=dict)
    vectors: dict[str, BufferSlice] = field(default_factory=dict)
    stacks: dict[str, GpuWeight] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    _joined: dict[tuple[str, ...], BufferSlice] = field(default_factory=dict)
    _host_vectors: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def add_vector(self, name: str, data: npt.NDArray[np.float32]) -> None:
        """Upload a vector, and keep it on the host for `concatenated`."""
        self.vectors[name] = self.others.upload(name, data)
        self._host_vectors[name] = data

    def concatenated(self, names: Sequence[str]) -> BufferSlice:
        """Return the concatenation of several vectors, uploaded once."""
        key = tuple(names)
        if key not in self._joined:
            data = np.concatenate([self._host_vectors[one].ravel() for one in names])
            self._joined[key] = self.others.upload("+".join(names), data)
        return self._joined[key]

    def stack(self, uses: Sequence[WeightUse]) -> GpuWeight:
        """Return the concatenated matrices of all experts."""
        return self.stacks[uses[0].name]

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        vectors = [*self.vectors.values(), *self._joined.values()]
        matrices = [*self.matrices.values(), *self.stacks.values()]
        return sum(one.size for one in matrices) + sum(one.size for one in vectors)


def load_weights(
    arena: Arena, package: Package, padded: PaddedGraph, preferences: Preferences
) -> Weights:
    """Upload every tensor that the graph reads.

    Args:
        arena: Owner of the buffers; in a `DryRunArena` no bytes are read or written.
        package: The package with the tensors.
        padded: The graph whose ops read them.
        preferences: Hints and defaults.

    Raises:
        ShardError: Bytes of a tensor are missing.
        FormatError: The values of a tensor that must be expanded do not fit the wider type.
        DeviceError: The adapter has too little memory, or cannot bind a row.
    """
    dry_run = arena if isinstance(arena, DryRunArena) else DryRunArena(arena.device)
    planned = Weights(dry_run.pool("weights", 0), dry_run.pool("vectors", 0))
    graph, scales = padded.graph, padded.scales
    _load(_Loader(planned, package, preferences, None, scales), graph)
    if dry_run is arena:
        return planned
    weights = Weights(
        arena.pool("weights", planned.blocks.size), arena.pool("vectors", planned.others.size)
    )
    with arena.temporary() as passing:
        uploader = Uploader(arena, passing)
        _load(_Loader(weights, package, preferences, uploader, scales), graph)
    return weights


def _load(loader: _Loader, graph: Graph) -> None:
    weights = loader.weights
    kinds = graph.weight_kinds()
    linears = {op.weight.name for op in graph.ops if isinstance(op, Linear)}
    for use in graph.weights():
        if use.kind is WeightKind.VECTOR:
            weights.add_vector(use.name, loader.vector(use))
        elif use.kind is not WeightKind.EXPERT:
            made = loader.matrix(use, matmul=WeightKind.MATRIX in kinds[use.name])
            weights.matrices[use.name] = loader.scaled(made, use) if use.name in linears else made
    for group in _expert_groups(graph):
        weights.stacks[group[0].name] = loader.stack(group)


def _expert_groups(graph: Graph) -> Iterator[tuple[WeightUse, ...]]:
    """Yield the groups of matrices to stack, each in the order of the experts."""
    for op in graph.ops:
        if isinstance(op, Experts):
            yield from (op.gates, op.ups, op.downs)


@dataclass(frozen=True)
class _Loader:
    """The upload of a package's tensors, which also records what is changed."""

    weights: Weights
    package: Package
    preferences: Preferences
    uploader: Uploader | None  # None in a dry run, which only allocates and decides
    scales: Mapping[str, VectorScale]

    def vector(self, use: WeightUse) -> npt.NDArray[np.float32]:
        """Return a norm weight or a bias."""
        if self.uploader is None:
            return np.zeros(use.shape, np.float32)
        if is_padded(self.package, use):
            return padded_vector(self.package, use, self.scales.get(use.name))
        return np.ascontiguousarray(self.package.dequantize(use.name), dtype=np.float32)

    def matrix(self, use: WeightUse, *, matmul: bool) -> GpuWeight:
        """Upload one matrix; `matmul` is False if it is only looked up."""
        return self._upload((use,), self._storage(use, matmul=matmul), use.name)

    def _storage(self, use: WeightUse, *, matmul: bool = True, experts: bool = False) -> Storage:
        tensor, k = self.package.tensor(use.name), use.shape[1]
        dtype, layout = tensor.parsed_dtype(), tensor.parsed_layout()
        if is_padded(self.package, use):
            note = f"{dtype} padded with zeros to a multiple of {LANES} at load"
            return Storage(padded_dtype(dtype), Layout.ROW, note)
        return choose_storage(self.preferences, dtype, layout, k, matmul=matmul, experts=experts)

    def scaled(self, matrix: GpuWeight, use: WeightUse) -> GpuWeight:
        """Return the matrix with its row scales, if int8 products need them."""
        if not has_row_scales(self.preferences, matrix.dtype, by_column=matrix.by_column):
            return matrix
        # In another buffer than the matrix, since a launch cannot read and write the same buffer.
        scales = self.weights.others.empty(f"{use.name}.scales", 4 * matrix.n)
        if self.uploader is not None:
            for one in row_scales(matrix, scales, label=use.name):
                self.weights.others.run(as_dispatch(one))
        return replace(matrix, row_scales=scales)

    def stack(self, uses: tuple[WeightUse, ...]) -> GpuWeight:
        """Upload the matrices of all experts as one."""
        wanted = dict.fromkeys(self._storage(use, experts=True) for use in uses)
        kept = next(iter(wanted))
        if len(wanted) > 1:
            note = "experts of different types expanded to F32 at load"
            kept = Storage(DTYPES["F32"], Layout.ROW, note)
        return self._upload(uses, kept, f"{uses[0].name} and {len(uses) - 1} more")

    def _upload(self, uses: Sequence[WeightUse], kept: Storage, label: str) -> GpuWeight:
        if kept.note:
            made_of = Decision("load", label, str(kept.dtype), kept.note, kept.unmet)
            self.weights.decisions.append(made_of)
        n, k = uses[0].shape
        made = allocate_weight(
            self.weights.blocks, kept.dtype, kept.layout, (n, k), label, count=len(uses)
        )
        if self.uploader is not None:
            matrices = (_kept_rows(self.package, use, kept) for use in uses)
            self.uploader.fill(made, kept.layout, (n, k), matrices, label)
        return replace(made, note=kept.note)


def _kept_rows(package: Package, use: WeightUse, kept: Storage) -> Iterator[Bytes]:
    """Yield the rows of a tensor in the type and layout in which they are kept."""
    if is_padded(package, use):
        return _encoded(padded_matrix(package, use), kept.dtype, use.name)
    tensor = package.tensor(use.name)
    dtype, layout = tensor.parsed_dtype(), tensor.parsed_layout()
    if dtype == kept.dtype:
        rows = _stored_rows(package, use.name, tensor)
    elif layout is Layout.FLAT:
        rows = _encoded(_flat_values(package, use, dtype), kept.dtype, use.name)
    else:
        rows = _encoded(_row_values(package, use.name, tensor), kept.dtype, use.name)
    if layout is Layout.COLUMN and kept.layout is Layout.ROW:
        return _transposed(rows, kept.dtype, use.shape)
    return rows


def _transposed(
    columns: Iterator[Bytes], dtype: DType, shape: tuple[int, ...], limit: int = CHUNK_BYTES
) -> Iterator[Bytes]:
    """Yield rows of K scalars from columns of N; the whole matrix is held in host memory."""
    n, k = shape
    rows_of_k = np.empty((n, k), f"V{dtype.block_bytes}")
    at = 0
    for some in columns:
        values = some.reshape(len(some), -1).view(rows_of_k.dtype)
        rows_of_k[:, at : at + len(values)] = values[:, :n].T
        at += len(values)
    rows = rows_of_k.view(np.uint8)
    step = max(1, limit // max(rows.shape[1], 1))
    for first in range(0, n, step):
        yield rows[first : first + step]


def _stored_rows(
    package: Package, name: str, tensor: Tensor, limit: int = CHUNK_BYTES
) -> Iterator[Bytes]:
    stored = tensor.geometry()
    if tensor.parsed_layout() is Layout.FLAT:
        yield package.read(name)
        return
    step = max(1, limit // max(stored.row_bytes, 1))
    for first in range(0, stored.rows, step):
        yield package.read_rows(name, first, min(step, stored.rows - first))


def _row_values(package: Package, name: str, tensor: Tensor) -> Iterator[npt.NDArray[np.float32]]:
    """Yield decoded rows of a layout whose rows begin with a block, f32 [rows, elements]."""
    elements = tensor.geometry().row_elements
    # Decoding to f32 enlarges a block type up to eightfold.
    for rows in _stored_rows(package, name, tensor, CHUNK_BYTES // 8):
        yield CODECS[tensor.parsed_dtype().name].dequantize(rows, elements)


def _flat_values(
    package: Package, use: WeightUse, dtype: DType
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield decoded rows of a flat layout, whose blocks may cross rows, f32 [rows, K]."""
    n, k = use.shape
    blocks = package.read(use.name).reshape(-1, dtype.block_bytes)
    whole = dtype.block_elements // gcd(dtype.block_elements, k)  # rows that end with a block
    step = max(1, CHUNK_BYTES // (4 * k * whole)) * whole
    for first in range(0, n, step):
        rows = min(step, n - first)
        start = first * k // dtype.block_elements
        end = -(-(first + rows) * k // dtype.block_elements)
        values = CODECS[dtype.name].dequantize(blocks[start:end], dtype.block_elements)
        yield values.reshape(-1)[: rows * k].reshape(rows, k)


def _encoded(values: Iterator[npt.NDArray[np.float32]], dtype: DType, name: str) -> Iterator[Bytes]:
    for rows in values:
        if dtype.name == "F16" and f16_overflow_count(rows):
            raise FormatError(
                "the tensor has values that are too large for F16",
                where=name,
                hint="use `kernel_hints` q4kMatmul=dequant_f32",
            )
        yield CODECS[dtype.name].quantize(rows)
