"""Linear layers as phases: by themselves, or with the ops around them folded in.

Each family of kernels takes and leaves its operands in its own way; that is all this module knows
of them. Which one serves a product is decided in `rdrr_runtime.compile.products`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_manifests.graph.ops import Linear, Norm, Residual, Router

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.decision import Chosen, Reason
from rdrr_runtime.compile.patterns import Branch
from rdrr_runtime.compile.products import Family, Product, ProductKernel, choose_folding
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.int8_rows import RowNorm, RowParts, int8_rows, int8_rows_bytes
from rdrr_runtime.phases.linear import linear
from rdrr_runtime.phases.matmul_int8 import matmul_int8
from rdrr_runtime.phases.matvec import Input, Output, matvec
from rdrr_runtime.phases.matvec_rows import RowsOutput, matvec_rows, rows_held
from rdrr_runtime.phases.phase import Phase


@dataclass(frozen=True)
class Served:
    """A product and the kernel that serves it."""

    product: Product
    chosen: Chosen[ProductKernel]

    @property
    def family(self) -> Family:
        """What its launch takes and leaves."""
        return self.chosen.candidate.family

    @property
    def reason(self) -> Reason:
        """Why that kernel."""
        return self.chosen.reason

    @property
    def int8(self) -> bool:
        """Whether its activations are in int8."""
        return self.chosen.candidate.int8

    @property
    def by_column(self) -> bool:
        """Whether its matrices have their groups along the outputs."""
        return any(one.by_column for one in self.product.weights)

    @property
    def k(self) -> int:
        """Inputs of a row."""
        return self.product.weights[0].k


def fold(
    build: PassBuilder,
    weights: Sequence[GpuWeight],
    ctx: OpContext | None = None,
    *,
    gate: bool = False,
    partials: int = 0,
) -> Served | None:
    """Return a product that takes in the ops around it, where one can be had as it is wished.

    Args:
        build: The pass.
        weights: One to three matrices [N, K] of one K.
        ctx: Where it runs; that of the pass when None.
        gate: See `Product`.
        partials: See `Product`.
    """
    product = replace(build.product(weights, ctx), folds=True, gate=gate, partials=partials)
    found = choose_folding(product, build.model.preferences)
    return None if found is None else Served(product, found)


# With the ops around it folded in -----------------------------------------------------------------

Operand = Input | BufferSlice
"""What a product that folds reads: of one row an `Input`; of a small batch the rows in int8."""


def normed(build: PassBuilder, served: Served, norm: Norm) -> Operand:
    """Return the operand of a product that a norm stands before; rows are rounded to int8."""
    x, gain = build.values.get(norm.x), build.gain(norm)
    if served.family is Family.ONE_ROW:
        return Input(x, *gain)
    return to_int8_rows(build, served, x, RowNorm(*gain), norm.out)


def emit_folded(
    build: PassBuilder,
    served: Served,
    source: Operand,
    y: BufferSlice,
    kind: str = "store",
    *,
    bias: BufferSlice | None = None,
    activation: str = "",
    label: str,
    depends: tuple[AnyTuningKey, ...] = (),
) -> None:
    """Emit a product of one row or of a small batch whose outputs lie in one buffer.

    Args:
        build: The pass.
        served: The product.
        source: What it reads.
        y: Where its outputs go.
        kind: `store`, `add` (to y) or `gate`.
        bias: f32, one for each output, or None.
        activation: Of `gate`.
        label: What the op is.
        depends: Tuning keys that the form of `source` depends on.
    """
    if isinstance(source, Input):
        emit_one_row(build, served, source, Output(y, kind, bias, activation), label, depends)
    else:
        emit_small_batch(build, served, source, RowsOutput((y,), kind, bias, activation), label)


def emit_branch(
    build: PassBuilder,
    served: Served,
    branch: Branch,
    source: Operand,
    depends: tuple[AnyTuningKey, ...] = (),
) -> None:
    """Emit a linear by a product that folds, added to the residual stream where one follows."""
    op, y, bias = _target(build, branch)
    kind = "add" if branch.residual is not None else "store"
    emit_folded(build, served, source, y, kind, bias=bias, label=op.out, depends=depends)


def _target(build: PassBuilder, branch: Branch) -> tuple[Linear, BufferSlice, BufferSlice | None]:
    """Return a linear, where its outputs go, and its bias."""
    op = branch.op
    assert isinstance(op, Linear), "only linears have such products"
    bias = None if op.bias is None else build.vector(op.bias)
    return op, build.target(op.out, op.weight.shape[0], branch.residual), bias


def emit_one_row(
    build: PassBuilder,
    served: Served,
    source: Input,
    output: Output,
    label: str,
    depends: tuple[AnyTuningKey, ...] = (),
) -> Phase:
    """Emit a one-row product and return its phase; its input depends on some parameters."""
    ctx = served.chosen.candidate.context(served.product)
    weights = served.product.weights
    made = matvec(ctx, weights, source, output, int8=served.int8, label=label, tuning_keys=depends)
    build.emit(made, served.reason)
    return made[0]


def emit_small_batch(
    build: PassBuilder, served: Served, x: BufferSlice, output: RowsOutput, label: str
) -> None:
    """Emit a small-batch product of rows in int8."""
    made = matvec_rows(build.ctx, served.product.weights, x, output, label=label)
    build.emit(made, served.reason)


def small_batch_input(build: PassBuilder, served: Served, name: str) -> BufferSlice:
    """Return a buffer for what a small-batch product multiplies."""
    rows = build.ctx.max_rows
    size = int8_rows_bytes(rows_held(rows), served.k)
    return build.workspace.named(f"{name}.{rows}.{served.k}", size)


def to_int8_rows(
    build: PassBuilder,
    served: Served,
    x: BufferSlice,
    before: RowNorm | RowParts | None,
    label: str,
) -> BufferSlice:
    """Emit the rounding of rows to int8, after their norm or the join of partial results."""
    target = small_batch_input(build, served, "int8 rows")
    made = int8_rows(build.ctx, x, target, k=served.k, before=before, label=f"{label}.int8")
    build.emit(made, served.reason)
    return target


# One matrix by itself -----------------------------------------------------------------------------


def lower_linear(build: PassBuilder, op: Linear, residual: Residual | None = None) -> None:
    """Emit a linear, added to the residual stream where one follows."""
    branch, x = Branch(op, residual), build.values.get(op.x)
    product = build.product((build.matrix(op.weight),))
    served = Served(product, build.choose(product))
    if served.family is Family.ONE_ROW:
        emit_branch(build, served, branch, Input(x))
    elif served.family is Family.SMALL_BATCH:
        emit_branch(build, served, branch, to_int8_rows(build, served, x, None, op.x))
    else:
        _, y, bias = _target(build, branch)
        adds = residual is not None
        emit_alone(build, served, op.x, x, y, bias=bias, accumulate=adds, label=op.out)
    build.values.read(op.x)


def emit_alone(
    build: PassBuilder,
    served: Served,
    name: str,
    x: BufferSlice,
    y: BufferSlice,
    *,
    bias: BufferSlice | None = None,
    accumulate: bool = False,
    single_row: bool = False,
    logits: bool = False,
    label: str,
) -> None:
    """Emit a product with one matrix that folds nothing in; int8 tiles round the value `name`."""
    weight = served.product.weights[0]
    if served.family is Family.INT8_TILES:
        rows = build.in_int8(name, x, served.k, served.reason)
        made = matmul_int8(
            build.ctx, weight, rows, y, bias=bias, accumulate=accumulate, label=label
        )
    else:
        made = linear(
            served.chosen.candidate.context(served.product),
            weight,
            x,
            y,
            bias=bias,
            accumulate=accumulate,
            single_row=single_row,
            logits=logits,
            tiled=served.family is Family.TILES,
            label=label,
        )
    build.emit(made, served.reason)


def exact_product(build: PassBuilder, op: Router, y: BufferSlice) -> None:
    """Emit a router's product, whose outputs are f32 and whose inputs are never in int8."""
    weight, x = build.matrix(op.weight), build.values.get(op.x)
    product = replace(build.product((weight,)), exact=True, fuses=False)
    served = Served(product, build.choose(product))
    emit_alone(build, served, op.x, x, y, logits=True, label=op.out)
