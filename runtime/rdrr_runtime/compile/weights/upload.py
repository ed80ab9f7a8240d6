"""The upload of a package's tensors to GPU memory, in the form that kernels read.

All matrices are allocated before the first is filled, so that passes can be lowered and shaders
compiled beside the upload.

Matrices keep their stored type unless `rdrr_runtime.compile.choice.storage` decides otherwise.
Matrices that it wants expanded are decoded here once, a few rows at a time, and column-major
matrices that it wants row-major are transposed. Which kernel reads a matrix is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice, align
from rdrr_device.dry_run import DryRunArena
from rdrr_device.kernels import Kernel
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_manifests.graph.ops import (
    Experts,
    GatedActivation,
    Graph,
    Linear,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.graph.padding import LANES, PaddedGraph, VectorScale
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.decision import Decision
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.compile.choice.storage import Storage, choose_storage
from rdrr_runtime.compile.weights.kept_rows import KeptRows
from rdrr_runtime.compile.weights.padding import (
    is_padded,
    padded_dtype,
    padded_vector,
)
from rdrr_runtime.compile.weights.read_ahead import (
    MAPPED_BUFFERS,
    Bytes,
    Read,
    reading_ahead,
)
from rdrr_runtime.compile.weights.rows import (
    CHUNK_BYTES,
    changed_rows,
    is_kept_as_stored,
    reads_as_stored,
)
from rdrr_runtime.phases.products.down import has_units_first
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.weights.packing import Uploader
from rdrr_runtime.phases.weights.repack import repack_kernel


@dataclass(frozen=True)
class MatrixLoad:
    """How a matrix in GPU memory is filled: from one tensor, or from those of all experts.

    Attributes:
        weight: The matrix, or the stack of matrices.
        uses: The tensors, in the order in which the stack holds them.
        kept: The type and layout in which the matrix is kept. Tensors that are stored in others are
            decoded, padded or transposed on the host.
        label: Name for messages.
    """

    weight: GpuWeight
    uses: tuple[WeightUse, ...]
    kept: Storage
    label: str

    def reads(self, package: Package) -> Iterator[Read]:
        """Yield functions that read the tensors kept as stored; other threads may call them."""
        for use in self.uses:
            yield from reads_as_stored(package, use, self.kept)

    def size(self, package: Package) -> int:
        """Return the stored bytes."""
        return sum(package.tensor(use.name).size for use in self.uses)

    def run(self, package: Package, uploader: Uploader, contents: Iterator[Bytes]) -> None:
        """Fill the matrix, taking the results of `reads` from an iterator."""
        matrices = (
            islice(contents, len(reads_as_stored(package, use, self.kept)))
            if is_kept_as_stored(package, use, self.kept)
            else changed_rows(package, use, self.kept)
            for use in self.uses
        )
        n, k = self.uses[0].shape
        uploader.fill(self.weight, self.kept.layout, (n, k), matrices, self.label)


@dataclass(frozen=True)
class VectorLoad:
    """How a vector is filled: decoded to f32, padded with zeros, and scaled if it is a norm's.

    Attributes:
        use: The tensor, with its shape in GPU memory.
        scale: How the weight of a norm over a padded width changes; None if it does not.
    """

    use: WeightUse
    scale: VectorScale | None = None

    def values(self, package: Package) -> npt.NDArray[np.float32]:
        """Return the vector."""
        if is_padded(package, self.use):
            return padded_vector(package, self.use, self.scale)
        return np.ascontiguousarray(package.dequantize(self.use.name), dtype=np.float32)


FEWEST_MAPPED = MAPPED_BUFFERS * CHUNK_BYTES
"""Fewest stored bytes that are read into mapped buffers: creating these takes 40 ms beside an H200,
as long as writing as many bytes."""

MOST_JOINED = 16 << 20
"""Most bytes of the first buffer for concatenated vectors, which is made when there are any.

Few vectors are concatenated more than once, so it is as large as all vectors. A pass in one
dispatch has a copy of a kernel for each buffer that it reads, so the concatenations share one.
"""


@dataclass
class Weights:
    """The weights of a model in GPU memory.

    Attributes:
        package: The package with the tensors.
        blocks: Owner of the matrices.
        others: Owner of the vectors.
        joined: Owner of the concatenated vectors.
        matrices: Matrices by tensor name; a tied head shares the entry of the embedding.
        vectors: Norm weights and biases in f32, by tensor name.
        stacks: The concatenated matrices of all experts of a layer, by the name of the first.
        concatenations: Concatenated vectors, by the names of their parts.
        decisions: Which matrices were changed at load, and why.
        matrix_loads: What fills the matrices once all are allocated, in this order.
        vector_loads: What the vectors hold, by tensor name.
        borrowed: Names of the matrices that belong to the weights of another graph.
        rows: Matrices as rows for batches and prompts; None if each product rounds its own.
        borrows_rows: Whether `rows` belongs to the weights of another graph.
    """

    package: Package
    blocks: Arena
    others: Arena
    joined: Arena
    matrices: dict[str, GpuWeight] = field(default_factory=dict)
    vectors: dict[str, BufferSlice] = field(default_factory=dict)
    stacks: dict[str, GpuWeight] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    concatenations: dict[tuple[str, ...], BufferSlice] = field(default_factory=dict)
    matrix_loads: list[MatrixLoad] = field(default_factory=list)
    vector_loads: dict[str, VectorLoad] = field(default_factory=dict)
    borrowed: set[str] = field(default_factory=set)
    rows: KeptRows | None = None
    borrows_rows: bool = False
    _host_vectors: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    _is_filled: bool = False

    @property
    def is_dry_run(self) -> bool:
        """Whether no bytes are read or written."""
        return isinstance(self.blocks, DryRunArena)

    def add_vector(self, load: VectorLoad) -> None:
        """Allocate a vector."""
        name = load.use.name
        self.vector_loads[name] = load
        self.vectors[name] = self.others.empty(name, 4 * prod(load.use.shape))

    def concatenated(self, names: Sequence[str]) -> BufferSlice:
        """Return the concatenation of several vectors, uploaded once they are.

        It is padded to a multiple of 4 elements, so that shaders can bind it as vectors of 4.
        """
        key = tuple(names)
        if key not in self.concatenations:
            size = sum(self.vectors[name].size for name in names)
            self.concatenations[key] = self.joined.empty("+".join(names), align(size, 16))
            if self._is_filled:
                self._concatenate(key)
        return self.concatenations[key]

    def _concatenate(self, names: tuple[str, ...]) -> None:
        data = np.concatenate([self._host_vectors[name].ravel() for name in names])
        self.joined.write(self.concatenations[names], np.pad(data, (0, -len(data) % 4)))

    def stack(self, uses: Sequence[WeightUse]) -> GpuWeight:
        """Return the concatenated matrices of all experts."""
        return self.stacks[uses[0].name]

    def fill(self) -> None:
        """Upload the vectors and the matrices, once.

        Raises:
            ShardError: Bytes of a tensor are missing.
            FormatError: The values of a tensor that must be expanded do not fit the wider type.
            DeviceError: The device is lost.
        """
        if self._is_filled or self.is_dry_run:
            return
        self._is_filled = True
        package = self.package
        for name, vector in self.vector_loads.items():
            data = self._host_vectors[name] = vector.values(package)
            self.others.write(self.vectors[name], data)
        for names in self.concatenations:
            self._concatenate(names)
        if not self.matrix_loads:
            return
        reads = (read for load in self.matrix_loads for read in load.reads(package))
        size = sum(load.size(package) for load in self.matrix_loads)
        mapped = self.blocks.mapped_buffers(CHUNK_BYTES, MAPPED_BUFFERS)
        with (
            self.blocks.temporary() as passing,
            mapped if size >= FEWEST_MAPPED else nullcontext() as buffers,
            reading_ahead(reads, buffers) as contents,
            Uploader(self.blocks, passing, size) as uploader,
        ):
            for load in self.matrix_loads:
                load.run(package, uploader, contents)
        if self.rows is not None:
            self.rows.fill()

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels that `fill` runs for the types of the matrices."""
        matrices = (*self.matrices.values(), *self.stacks.values())
        kinds = {
            (matrix.dtype, matrix.form): matrix for matrix in matrices if not matrix.form.values
        }
        return tuple(repack_kernel(matrix) for matrix in kinds.values())

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        vectors = [*self.vectors.values(), *self.concatenations.values()]
        owned = [matrix for name, matrix in self.matrices.items() if name not in self.borrowed]
        matrices = [*owned, *self.stacks.values()]
        rows = 0 if self.rows is None or self.borrows_rows else self.rows.size
        sizes = [matrix.size for matrix in matrices] + [vector.size for vector in vectors]
        return rows + sum(sizes)


def allocate_weights(
    arena: Arena,
    package: Package,
    padded: PaddedGraph,
    preferences: Preferences,
    beside: Weights | None = None,
) -> Weights:
    """Allocate every matrix and every vector that the graph reads.

    Phases can refer to them before `Weights.fill` has uploaded them.

    Args:
        arena: Owner of the buffers; in a `DryRunArena` no bytes are read or written.
        package: The package with the tensors.
        padded: The graph whose ops read them.
        preferences: Hints and defaults.
        beside: Weights that another graph of the package has loaded; their matrices are shared.

    Raises:
        ShardError: Bytes of a tensor are missing.
        DeviceError: The adapter has too little memory, or cannot bind a row.
    """
    is_dry_run = isinstance(arena, DryRunArena)
    dry_run = arena if isinstance(arena, DryRunArena) else DryRunArena(arena.capabilities)
    rows = KeptRows(arena) if preferences.policy.keeps_rounded else None
    if beside is not None:
        rows = beside.rows
    planned = Weights(
        package,
        dry_run.pool("weights", 0),
        dry_run.pool("vectors", 0),
        dry_run.pool("joined", 0),
        rows=rows,
        borrows_rows=beside is not None,
    )
    graph, scales = padded.graph, padded.scales
    held = {} if beside is None else beside.matrices
    on_host = preferences.policy.keeps_tables_on_host
    left_out = frozenset(op.weight.name for op in graph.further_tables if on_host)
    downs = down_projections(graph) if preferences.joins_feed_forwards else frozenset()
    loader = _Loader(planned, package, preferences, scales, held, left_out, downs)
    _load(loader, graph)
    if is_dry_run:
        return planned
    others = planned.others.size
    weights = Weights(
        package,
        arena.pool("weights", planned.blocks.size),
        arena.pool("vectors", others),
        arena.pool("joined", min(others, MOST_JOINED)),
        rows=rows,
        borrows_rows=beside is not None,
    )
    _load(replace(loader, weights=weights), graph)
    return weights


def down_projections(graph: Graph) -> frozenset[str]:
    """Return the names of the matrices that multiply the output of gate and up."""
    gated = {op.out for op in graph.ops if isinstance(op, GatedActivation)}
    return frozenset(op.weight.name for op in graph.ops if isinstance(op, Linear) and op.x in gated)


def _load(loader: _Loader, graph: Graph) -> None:
    weights = loader.weights
    uses, kinds = graph.weights(), graph.weight_kinds()
    # Those of a kind lie together: a pass in one dispatch has a copy of a kernel for each buffer.
    for use in sorted(uses, key=lambda use: (loader.package.tensor(use.name).dtype, use.shape)):
        if use.name in loader.left_out:
            continue
        if use.kind is WeightKind.VECTOR:
            weights.add_vector(VectorLoad(use, loader.scales.get(use.name)))
        elif use.name in loader.held:
            weights.matrices[use.name] = loader.held[use.name]
            weights.borrowed.add(use.name)
        elif use.kind is not WeightKind.EXPERT:
            matrix = loader.matrix(use, matmul=WeightKind.MATRIX in kinds[use.name])
            weights.matrices[use.name] = matrix
    for group in _expert_groups(graph):
        weights.stacks[group[0].name] = loader.stack(group)
    places = {use.name: place for place, use in enumerate(uses)}
    weights.matrix_loads.sort(key=lambda load: places[load.uses[0].name])  # as shards are read


def _expert_groups(graph: Graph) -> Iterator[tuple[WeightUse, ...]]:
    """Yield the groups of matrices to stack, each in the order of the experts."""
    for op in graph.ops:
        if isinstance(op, Experts):
            yield from (group for group in (op.gates, op.ups, op.downs) if group)


@dataclass(frozen=True)
class _Loader:
    """The allocation of a package's tensors, which also records what is changed at load."""

    weights: Weights
    package: Package
    preferences: Preferences
    scales: Mapping[str, VectorScale]
    held: Mapping[str, GpuWeight]  # matrices that another graph has loaded
    left_out: frozenset[str]  # tables that stay on the host
    downs: frozenset[str]  # down projections that may share a phase with gate and up

    def matrix(self, use: WeightUse, *, matmul: bool) -> GpuWeight:
        """Allocate one matrix; `matmul` is False if it is only looked up."""
        kept = self._storage(use, matmul=matmul)
        column = kept.layout is Layout.COLUMN
        first = use.name in self.downs and has_units_first(use.shape[1], column=column)
        kept = replace(kept, units_first=first and kept.layout is not Layout.FLAT)
        return self._allocate((use,), kept, use.name)

    def _storage(self, use: WeightUse, *, matmul: bool = True, experts: bool = False) -> Storage:
        tensor, k = self.package.tensor(use.name), use.shape[1]
        dtype, layout = tensor.parsed_dtype(), tensor.parsed_layout()
        if is_padded(self.package, use):
            note = f"{dtype} padded with zeros to a multiple of {LANES} at load"
            return Storage(padded_dtype(dtype), Layout.ROW, note)
        return choose_storage(self.preferences, dtype, layout, k, matmul=matmul, experts=experts)

    def stack(self, uses: tuple[WeightUse, ...]) -> GpuWeight:
        """Allocate the matrices of all experts as one."""
        wanted = dict.fromkeys(self._storage(use, experts=True) for use in uses)
        kept = next(iter(wanted))
        if len(wanted) > 1:
            note = "experts of different types expanded to F32 at load"
            kept = Storage(DTYPES["F32"], Layout.ROW, note)
        return self._allocate(uses, kept, f"{uses[0].name} and {len(uses) - 1} more")

    def _allocate(self, uses: Sequence[WeightUse], kept: Storage, label: str) -> GpuWeight:
        if kept.note:
            made_of = Decision("load", label, str(kept.dtype), kept.note, kept.unmet)
            self.weights.decisions.append(made_of)
        n, k = uses[0].shape
        weight = allocate_weight(
            self.weights.blocks,
            kept.dtype,
            kept.layout,
            (n, k),
            label,
            count=len(uses),
            units_first=kept.units_first,
        )
        load = MatrixLoad(weight, tuple(uses), kept, label)
        self.weights.matrix_loads.append(load)
        return replace(weight, note=kept.note)
