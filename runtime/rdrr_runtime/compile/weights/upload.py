"""The upload of a package's tensors to GPU memory, in the form that kernels read.

All matrices are allocated before the first is filled, so that passes can be lowered and shaders
compiled beside the upload.

Matrices keep their stored type unless `rdrr_runtime.compile.choice.storage` decides otherwise.
Matrices that it wants expanded are decoded here once, a few rows at a time, and column-major
matrices that it wants row-major are transposed. Which kernel reads a matrix is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
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
from rdrr_runtime.compile.weights.padding import (
    is_padded,
    padded_dtype,
    padded_vector,
)
from rdrr_runtime.compile.weights.read_ahead import Bytes, Read, reading_ahead
from rdrr_runtime.compile.weights.rows import changed_rows, reads_as_stored
from rdrr_runtime.phases.products.down import has_units_first
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.weights.packing import Uploader
from rdrr_runtime.phases.weights.repack import repack_kernel


@dataclass(frozen=True)
class Fill:
    """A step of an upload.

    Attributes:
        run: Uploads to a matrix; it takes the results of its own reads from an iterator over those
            of all steps.
        reads: Functions that read stored bytes, and may be called earlier in other threads.
        size: Stored bytes.
    """

    run: Callable[[Uploader, Iterator[Bytes]], None]
    reads: tuple[Read, ...]
    size: int


MOST_JOINED = 16 << 20
"""Most bytes of the first buffer for concatenated vectors, which is made when there are any.

Few vectors are concatenated more than once, so it is as large as all vectors. A pass in one
dispatch has a copy of a kernel for each buffer that it reads, so the concatenations share one.
"""


@dataclass
class Weights:
    """The weights of a model in GPU memory.

    Attributes:
        blocks: Owner of the matrices.
        others: Owner of the vectors.
        joined: Owner of the concatenated vectors.
        matrices: Matrices by tensor name; a tied head shares the entry of the embedding.
        vectors: Norm weights and biases in f32, by tensor name.
        stacks: The concatenated matrices of all experts of a layer, by the name of the first.
        decisions: Which matrices were changed at load, and why.
        fills: What fills the matrices once all are allocated, in this order.
        borrowed: Names of the matrices that belong to the weights of another graph.
    """

    blocks: Arena
    others: Arena
    joined: Arena
    matrices: dict[str, GpuWeight] = field(default_factory=dict)
    vectors: dict[str, BufferSlice] = field(default_factory=dict)
    stacks: dict[str, GpuWeight] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    borrowed: set[str] = field(default_factory=set)
    _joined: dict[tuple[str, ...], BufferSlice] = field(default_factory=dict)
    _host_vectors: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def add_vector(self, name: str, data: npt.NDArray[np.float32]) -> None:
        """Upload a vector, and keep it on the host for `concatenated`."""
        self.vectors[name] = self.others.upload(name, data)
        self._host_vectors[name] = data

    def concatenated(self, names: Sequence[str]) -> BufferSlice:
        """Return the concatenation of several vectors, uploaded once.

        It is padded to a multiple of 4 elements, so that shaders can bind it as vectors of 4.
        """
        key = tuple(names)
        if key not in self._joined:
            data = np.concatenate([self._host_vectors[name].ravel() for name in names])
            padded = np.pad(data, (0, -len(data) % 4))
            self._joined[key] = self.joined.upload("+".join(names), padded)
        return self._joined[key]

    def stack(self, uses: Sequence[WeightUse]) -> GpuWeight:
        """Return the concatenated matrices of all experts."""
        return self.stacks[uses[0].name]

    def fill(self) -> None:
        """Upload the matrices, once; the vectors have been uploaded before.

        Raises:
            ShardError: Bytes of a tensor are missing.
            FormatError: The values of a tensor that must be expanded do not fit the wider type.
            DeviceError: The device is lost.
        """
        fills, self.fills = self.fills, []
        if not fills:
            return
        reads = (read for fill in fills for read in fill.reads)
        with (
            self.blocks.temporary() as passing,
            reading_ahead(reads) as contents,
            Uploader(self.blocks, passing, sum(fill.size for fill in fills)) as uploader,
        ):
            for fill in fills:
                fill.run(uploader, contents)

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
        vectors = [*self.vectors.values(), *self._joined.values()]
        owned = [matrix for name, matrix in self.matrices.items() if name not in self.borrowed]
        matrices = [*owned, *self.stacks.values()]
        return sum(matrix.size for matrix in matrices) + sum(vector.size for vector in vectors)


def allocate_weights(
    arena: Arena,
    package: Package,
    padded: PaddedGraph,
    preferences: Preferences,
    beside: Weights | None = None,
) -> Weights:
    """Allocate every matrix that the graph reads and upload every vector.

    Phases can refer to the matrices before `Weights.fill` has uploaded them.

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
    planned = Weights(
        dry_run.pool("weights", 0), dry_run.pool("vectors", 0), dry_run.pool("joined", 0)
    )
    graph, scales = padded.graph, padded.scales
    held = {} if beside is None else beside.matrices
    on_host = preferences.policy.keeps_tables_on_host
    left_out = frozenset(op.weight.name for op in graph.further_tables if on_host)
    downs = down_projections(graph) if preferences.joins_feed_forwards else frozenset()
    loader = _Loader(planned, package, preferences, scales, held, left_out, downs, is_dry_run=True)
    _load(loader, graph)
    if is_dry_run:
        return planned
    others = planned.others.size
    weights = Weights(
        arena.pool("weights", planned.blocks.size),
        arena.pool("vectors", others),
        arena.pool("joined", min(others, MOST_JOINED)),
    )
    _load(replace(loader, weights=weights, is_dry_run=False), graph)
    return weights


def down_projections(graph: Graph) -> frozenset[str]:
    """Return the names of the matrices that multiply the output of gate and up."""
    gated = {op.out for op in graph.ops if isinstance(op, GatedActivation)}
    return frozenset(op.weight.name for op in graph.ops if isinstance(op, Linear) and op.x in gated)


def _load(loader: _Loader, graph: Graph) -> None:
    weights = loader.weights
    kinds = graph.weight_kinds()
    for use in graph.weights():
        if use.name in loader.left_out:
            continue
        if use.kind is WeightKind.VECTOR:
            weights.add_vector(use.name, loader.vector(use))
        elif use.name in loader.held:
            weights.matrices[use.name] = loader.held[use.name]
            weights.borrowed.add(use.name)
        elif use.kind is not WeightKind.EXPERT:
            matrix = loader.matrix(use, matmul=WeightKind.MATRIX in kinds[use.name])
            weights.matrices[use.name] = matrix
    for group in _expert_groups(graph):
        weights.stacks[group[0].name] = loader.stack(group)


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
    is_dry_run: bool = False  # only allocate and decide

    def vector(self, use: WeightUse) -> npt.NDArray[np.float32]:
        """Return a norm weight or a bias."""
        if self.is_dry_run:
            return np.zeros(use.shape, np.float32)
        if is_padded(self.package, use):
            return padded_vector(self.package, use, self.scales.get(use.name))
        return np.ascontiguousarray(self.package.dequantize(use.name), dtype=np.float32)

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
        if not self.is_dry_run:
            reads = [reads_as_stored(self.package, use, kept) for use in uses]

            def fill(uploader: Uploader, contents: Iterator[Bytes]) -> None:
                matrices = (
                    islice(contents, len(read)) if read else changed_rows(self.package, use, kept)
                    for use, read in zip(uses, reads, strict=True)
                )
                uploader.fill(weight, kept.layout, (n, k), matrices, label)

            size = sum(self.package.tensor(use.name).size for use in uses)
            self.weights.fills.append(Fill(fill, tuple(chain(*reads)), size))
        return replace(weight, note=kept.note)
