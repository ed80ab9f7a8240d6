"""A pass under construction: its phases so far, the decisions behind them, and its values.

The modules `lower_*` add phases to it. This module only keeps the state that they share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Graph, Linear, Norm, Residual, WeightUse

from rdrr_runtime.compile.choice.decision import ONLY, Chosen, Decision, Reason, decisions_of
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.compile.choice.products import Product, ProductKernel, choose_product
from rdrr_runtime.compile.lowering.values import Values, Workspace
from rdrr_runtime.compile.pass_spec import PassSpec
from rdrr_runtime.compile.patterns.layers import Body
from rdrr_runtime.compile.patterns.residual import StreamSum
from rdrr_runtime.compile.weights.upload import Weights
from rdrr_runtime.phases.cache.kept_hidden import KeptHidden
from rdrr_runtime.phases.cache.kv_cache import KvCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.products.fusion import AttentionSplits, GatedPair, Input, RowNorm
from rdrr_runtime.phases.products.half_rows import HalfRows, half_rows, half_sizes
from rdrr_runtime.phases.products.quantize_rows import (
    QuantizedRows,
    int8_sizes,
    padded_rows,
    quantize_rows,
)
from rdrr_runtime.phases.products.requantize import (
    Requantized,
    is_rounded,
    requantized,
    shared_bytes,
    whole_bytes,
)
from rdrr_runtime.phases.products.sum_splits import AddedSplits, added_splits
from rdrr_runtime.phases.routes import Routed
from rdrr_runtime.phases.rows.copy import copy
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


class ImageFeatureBuffers(Protocol):
    """The buffers of features of images, see `rdrr_runtime.exec.image_inputs`."""

    @property
    def first(self) -> int:
        """The token from which on tokens are those of images."""

    @property
    def width(self) -> int:
        """Elements of a row."""

    def are_seen_whole(self, window: int | None) -> bool:
        """Return whether rows of an image attend to all of it, in layers with such a window."""

    @property
    def buffers(self) -> Mapping[str, BufferSlice]:
        """The features of each value of the graph that takes some, f32 [rows, width]."""


@dataclass(frozen=True)
class LoadedModel:
    """A graph with its weights and buffers in GPU memory, from which passes are built.

    Attributes:
        graph: The ops to compute.
        weights: Matrices and vectors.
        ropes: A table of rotations for each of `graph.ropes`.
        workspace: Buffers of intermediate values.
        preferences: The kernels and types that hints and defaults ask for.
        max_binding: Bytes of the largest buffer that can be bound.
        may_fuse: Whether one kernel may serve several ops.
        hidden: The hidden states that a model keeps for its draft head; None if there is none.
        host_rows: For each table that stays on the host, by its name, the rows of the tokens of a
            pass, [rows, width].
        images: Features of images in the rows of a pass; None if the model does not see.
    """

    graph: Graph
    weights: Weights
    ropes: tuple[BufferSlice, ...]
    workspace: Workspace
    preferences: Preferences
    max_binding: int
    may_fuse: bool = True
    hidden: KeptHidden | None = None
    host_rows: Mapping[str, BufferSlice] = field(default_factory=dict)
    images: ImageFeatureBuffers | None = None

    @cached_property
    def requantized_bytes(self) -> int:
        """Bytes of the buffer for matrices that int8 products need rounded; 0 if there are none."""
        scalars = self.preferences.scalar_arithmetic.int8
        rounded = (
            matrix
            for matrix in self.weights.matrices.values()
            if is_rounded(matrix) and (scalars or matrix.dtype.is_block)
        )
        return shared_bytes(rounded, self.max_binding)


@dataclass
class PassBuilder:
    """A pass under construction.

    Attributes:
        model: The graph with its memory.
        spec: The kind of pass.
        ctx: State of the step, features and limits; its rows are the largest number of the pass.
        cache: Keys and values.
        body: The ops before the head, and the readers of their values.
        values: The buffer of each intermediate value.
        phases: The phases emitted so far.
        decisions: The kernel that serves each op so far, and why.
        routed: The routes of each router, by the name of its output value.
        deferred: Norms that have not been emitted because each reader computes them, by the names
            of their outputs.
        uncombined: The input of the product that combines the partial results of an attention, by
            the name of the attention's output.
        pending_sum: A sum that has not been emitted because the next product may compute it; None
            for none.
        fixed: Values that a phase has left in fixed point, by their names.
        sums: Memory for further values in fixed point, of which the first is cleared when a phase
            begins that adds to it; None if there is none.
        layers: Phases that belong to the layers and stay as they are; 0 until all are emitted.
    """

    model: LoadedModel
    spec: PassSpec
    ctx: OpContext
    cache: KvCache
    body: Body
    values: Values
    phases: list[Phase] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    routed: dict[str, Routed] = field(default_factory=dict)
    deferred: dict[str, Norm] = field(default_factory=dict)
    uncombined: dict[str, Input] = field(default_factory=dict)
    pending_sum: StreamSum | None = None
    fixed: dict[str, BufferSlice] = field(default_factory=dict)
    sums: BufferSlice | None = None
    layers: int = 0
    _quantized_names: dict[tuple[int, int], tuple[str, bool]] = field(default_factory=dict)
    _halved_names: dict[int, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Workspace:
        """Buffers of values."""
        return self.model.workspace

    def emit(self, phases: Sequence[Phase], reason: Reason = ONLY) -> None:
        """Append phases, and the reason for choosing them."""
        self.phases += phases
        self.decisions += decisions_of(self.spec.name, phases, reason)

    def matrix(self, use: WeightUse) -> GpuWeight:
        """Return a matrix in GPU memory."""
        return self.model.weights.matrices[use.name]

    def vector(self, use: WeightUse) -> BufferSlice:
        """Return a vector in GPU memory, f32."""
        return self.model.weights.vectors[use.name]

    def gain(self, norm: Norm) -> tuple[BufferSlice, float, float]:
        """Return the weight of a plain norm, its epsilon, and the offset added to the weight."""
        assert norm.weight is not None, "a plain norm has a weight"
        return self.vector(norm.weight), norm.eps, float(norm.unit_offset)

    def mark_source_read(self, norm: Norm | None, x: str, count: int) -> None:
        """Note that `count` ops have read a value, or computed the norm that it is the output of.

        Args:
            norm: The norm directly before the ops; None if there is none.
            x: The value.
            count: Number of ops.
        """
        if norm is not None:
            self.deferred[x] = norm
        self.values.mark_read(*[x] * count)
        if x in self.deferred and self.values.readers[x] == 0:
            self.values.mark_read(self.deferred.pop(x).x)

    def target(self, out: str, width: int, residual: Residual | None) -> BufferSlice:
        """Return the buffer that an op writes: a new value, or the residual stream it is added to.

        Fetch the op's operands before the call, since it renames the value of the stream.
        """
        if residual is None:
            return self.values.allocate(out, width)
        stream = self.values.get(residual.x)
        self.values.rename(residual.x, residual.out)
        return stream

    def changed(self, x: str, out: str) -> tuple[BufferSlice, int]:
        """Return a buffer in which an op may change a value, and the width of the value.

        It is the value's own, or a copy if other ops still have to read the old value.

        Args:
            x: The value.
            out: Its name after the change.
        """
        source, (width, *_) = self.values.get(x), self.values.live[x]
        if self.values.readers[x] == 1:
            self.values.rename(x, out)
            return source, width
        y = self.values.allocate(out, width)
        self.emit(copy(source, y, label=out))
        self.values.mark_read(x)
        return y, width

    def concatenated_bias(self, linears: Sequence[Linear]) -> BufferSlice | None:
        """Return the concatenated biases of some linears; None if they have no bias."""
        names = [linear.bias.name for linear in linears if linear.bias is not None]
        return self.model.weights.concatenated(names) if names else None

    def product(self, weights: Sequence[GpuWeight], ctx: OpContext | None = None) -> Product:
        """Return the request for a product with some matrices."""
        return Product(
            ctx or self.ctx,
            tuple(weights),
            shared_bytes=None if self.model.weights.rows else self.model.requantized_bytes,
            rounds_scalars=self.model.preferences.scalar_arithmetic.int8,
            may_fuse=self.model.may_fuse,
        )

    def choose(self, product: Product) -> Chosen[ProductKernel]:
        """Choose the kernel of a product with one matrix."""
        return choose_product(product, self.model.preferences)

    def quantized(
        self,
        name: str,
        x: BufferSlice,
        k: int,
        reason: Reason,
        *,
        before: RowNorm | GatedPair | None = None,
        per_row: int = 1,
        halves: bool = False,
    ) -> QuantizedRows:
        """Return a value quantized to int8 for tiled products.

        Linears that read the same value share the result.

        Args:
            name: Name of the value.
            x: The value, f32 [rows, per_row, K].
            k: Elements per row, K.
            reason: Why the products that read the value are in int8.
            before: The norm or activation that makes the value of x; None if it is x.
            per_row: Rows of K elements per token row.
            halves: Whether each 16 elements have a scale, instead of each 32.
        """
        rows = self.ctx.max_rows * per_row
        q_size, scales_size = int8_sizes(rows, k)
        target = QuantizedRows(
            self.workspace.named(f"int8.{rows}.{k}", q_size),
            self.workspace.named(f"int8 scales.{rows}.{k}", scales_size),
            padded_rows(rows),
            k,
            halves,
        )
        if self._quantized_names.get((rows, k)) != (name, halves):
            phases = quantize_rows(
                self.ctx, x, target, before=before, per_row=per_row, label=f"{name}.int8"
            )
            self.emit(phases, reason)
            self._quantized_names[rows, k] = name, halves
        return target

    def halved(
        self,
        name: str,
        x: BufferSlice,
        k: int,
        reason: Reason,
        *,
        before: RowNorm | GatedPair | AttentionSplits | None = None,
    ) -> HalfRows:
        """Return a value in f16 for products on matrices of subgroups, which linears share.

        Args:
            name: Name of the value.
            x: The value, f32 [rows, K].
            k: Elements per row, K.
            reason: Why the products that read the value are in f16.
            before: The norm, activation or combination that makes the value of x; None if it is x.
        """
        is_there = self._halved_names.get(k) == name
        target = self.half_target(name, k)
        if not is_there:
            added = self._take_splits(x) if isinstance(before, RowNorm) else None
            phases = half_rows(self.ctx, x, target, before=before, added=added, label=f"{name}.f16")
            self.emit(phases, reason)
        return target

    def half_target(self, name: str, k: int) -> HalfRows:
        """Return the buffers of a value in f16, which the caller emits the phase for."""
        rows = self.ctx.max_rows
        y_size, factors_size = half_sizes(rows, k)
        self._halved_names[k] = name
        return HalfRows(
            self.workspace.named(f"f16.{rows}.{k}", y_size),
            self.workspace.named(f"f16 factors.{rows}.{k}", factors_size),
            padded_rows(rows),
            k,
        )

    def _take_splits(self, x: BufferSlice) -> AddedSplits | None:
        """Take back the last phase if all it does is to add the splits of a product to x."""
        added = added_splits(self.phases[-1], x) if len(self.phases) > self.layers else None
        if added is not None:
            self.phases.pop()
            self.decisions.pop()
        return added

    def requantized(self, weights: Sequence[GpuWeight], label: str) -> tuple[Requantized, ...]:
        """Return matrices rounded to Q8_0 rows, which are kept or in a buffer that all share.

        Args:
            weights: One matrix, or several that find room in the buffer together.
            label: Name of the product, for messages and profiles.
        """
        rows = self.model.weights.rows
        if rows is not None:
            return tuple(rows.of(weight, label) for weight in weights)
        shared = self.workspace.named("requantized", self.model.requantized_bytes)
        matrices, begin = [], 0
        for weight in weights:
            rest = shared.range(begin, shared.size - begin)
            matrices.append(requantized(weight, rest, self.model.max_binding, label=label))
            begin += whole_bytes(weight)
        return tuple(matrices)
