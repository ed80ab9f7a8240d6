"""A pass under construction: its phases so far, the decisions behind them, and its values.

The modules beside it add to a pass what serves the ops of a graph; this one only keeps books.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph.ops import Graph, Linear, Norm, Residual, WeightUse

from rdrr_runtime.compile.decision import ONLY, Chosen, Decision, Reason, decisions_of
from rdrr_runtime.compile.pass_spec import PassSpec
from rdrr_runtime.compile.patterns import Body
from rdrr_runtime.compile.preferences import Preferences
from rdrr_runtime.compile.products import Product, ProductKernel, choose_product
from rdrr_runtime.compile.values import Values, Workspace
from rdrr_runtime.compile.weights import Weights
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.quantize_rows import QuantizedRows, int8_sizes, padded_rows, quantize_rows
from rdrr_runtime.phases.routing import Routed


@dataclass(frozen=True)
class LoadedModel:
    """A graph with its memory: what passes are built over.

    Attributes:
        graph: What to compute.
        weights: Matrices and vectors.
        ropes: One table for each of `graph.ropes`.
        workspace: Buffers of values.
        preferences: What hints and defaults ask for.
        max_binding: Bytes of the largest buffer that can be bound.
        fuses: Whether one kernel may serve several ops.
    """

    graph: Graph
    weights: Weights
    ropes: tuple[BufferSlice, ...]
    workspace: Workspace
    preferences: Preferences
    max_binding: int
    fuses: bool = True


@dataclass
class PassBuilder:
    """One pass of a model, as far as it has been built.

    Attributes:
        model: What it is built over.
        spec: Which pass.
        ctx: State of the step, features and limits; its rows are the most of the pass.
        cache: Keys and values.
        body: The ops before the head, and who reads their values.
        values: Which buffer holds which value.
        phases: The phases so far.
        decisions: What serves each op so far, and why.
        routed: Where rows go, by the value of the router that says so.
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
    _int8_held: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def workspace(self) -> Workspace:
        """Buffers of values."""
        return self.model.workspace

    def emit(self, phases: Sequence[Phase], reason: Reason = ONLY) -> None:
        """Append phases and why they were chosen."""
        self.phases += phases
        self.decisions += decisions_of(self.spec.name, phases, reason)

    def matrix(self, use: WeightUse) -> GpuWeight:
        """Return a matrix in GPU memory."""
        return self.model.weights.matrices[use.name]

    def vector(self, use: WeightUse) -> BufferSlice:
        """Return a vector in GPU memory, f32."""
        return self.model.weights.vectors[use.name]

    def gain(self, norm: Norm) -> tuple[BufferSlice, float, float]:
        """Return the weight of a norm, its eps, and what is added to the weight."""
        return self.vector(norm.weight), norm.eps, float(norm.unit_offset)

    def target(self, out: str, width: int, residual: Residual | None) -> BufferSlice:
        """Return where an op writes: a new value, or the stream that its output is added to.

        Call it once the op's operands have been fetched: the stream takes on its new name.
        """
        if residual is None:
            return self.values.take(out, width)
        stream = self.values.get(residual.x)
        self.values.rename(residual.x, residual.out)
        return stream

    def joined_bias(self, linears: Sequence[Linear]) -> BufferSlice | None:
        """Return the biases of some linears one after the other, if they have any."""
        names = [one.bias.name for one in linears if one.bias is not None]
        return self.model.weights.joined(names) if names else None

    def product(self, weights: Sequence[GpuWeight], ctx: OpContext | None = None) -> Product:
        """Return a request for a product with some matrices."""
        return Product(ctx or self.ctx, tuple(weights), fuses=self.model.fuses)

    def choose(self, product: Product) -> Chosen[ProductKernel]:
        """Return the kernel of a product with one matrix."""
        return choose_product(product, self.model.preferences)

    def in_int8(
        self, name: str, x: BufferSlice, k: int, reason: Reason, *, per_row: int = 1
    ) -> QuantizedRows:
        """Return a value rounded to int8 for tiles of many rows; the linears that read it share it.

        Args:
            name: The value.
            x: f32 [rows, per_row, K].
            k: Elements of a row.
            reason: Why the products that read it are in int8.
            per_row: Rows of K elements for each token row.
        """
        rows = self.ctx.max_rows * per_row
        q_size, scales_size = int8_sizes(rows, k)
        target = QuantizedRows(
            self.workspace.named(f"int8.{rows}.{k}", q_size),
            self.workspace.named(f"int8 scales.{rows}.{k}", scales_size),
            padded_rows(rows),
            k,
        )
        if self._int8_held.get((rows, k)) != name:
            made = quantize_rows(self.ctx, x, target, per_row=per_row, label=f"{name}.int8")
            self.emit(made, reason)
            self._int8_held[rows, k] = name
        return target
