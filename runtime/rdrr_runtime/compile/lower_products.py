"""Linear layers as phases: by themselves, or with the ops around them folded in.

Each family of kernels takes and leaves its operands in its own way; that is all this module knows
of them. Which one serves a product is decided in `rdrr_runtime.compile.products`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_manifests.graph.ops import Linear, Norm, Residual

from rdrr_runtime.compile.builder import PassBuilder
from rdrr_runtime.compile.decision import Chosen, Reason
from rdrr_runtime.compile.patterns import Branch
from rdrr_runtime.compile.products import Family, Product, ProductKernel
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


def fold(build: PassBuilder, product: Product) -> Served | None:
    """Return a product that takes in the ops around it, where one can be had as it is wished."""
    found = build.fold(product)
    return None if found is None else Served(product, found)


def _target(build: PassBuilder, branch: Branch) -> tuple[Linear, BufferSlice, BufferSlice | None]:
    """Return a linear, where its outputs go, and its bias."""
    op = branch.op
    assert isinstance(op, Linear), "only linears have such products"
    bias = None if op.bias is None else build.vector(op.bias)
    return op, build.target(op.out, op.weight.shape[0], branch.residual), bias


# One row ------------------------------------------------------------------------------------------


def norm_input(build: PassBuilder, norm: Norm) -> Input:
    """Return the input of a one-row product that a norm stands before."""
    gain, eps, offset = build.gain(norm)
    return Input(build.values.get(norm.x), gain, eps, offset)


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


def emit_one_row_branch(
    build: PassBuilder,
    served: Served,
    branch: Branch,
    source: Input,
    depends: tuple[AnyTuningKey, ...] = (),
) -> None:
    """Emit a linear of one row, added to the residual stream where one follows."""
    op, y, bias = _target(build, branch)
    output = Output(y, "add" if branch.residual is not None else "store", bias)
    emit_one_row(build, served, source, output, op.out, depends)


# A small batch ------------------------------------------------------------------------------------


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


def normed_int8_rows(build: PassBuilder, served: Served, norm: Norm) -> BufferSlice:
    """Emit a norm whose rows are rounded to int8."""
    return to_int8_rows(
        build, served, build.values.get(norm.x), RowNorm(*build.gain(norm)), norm.out
    )


def emit_small_batch(
    build: PassBuilder, served: Served, x: BufferSlice, output: RowsOutput, label: str
) -> None:
    """Emit a small-batch product of rows in int8."""
    made = matvec_rows(build.ctx, served.product.weights, x, output, label=label)
    build.emit(made, served.reason)


def emit_small_batch_branch(
    build: PassBuilder, served: Served, branch: Branch, x: BufferSlice
) -> None:
    """Emit a linear of rows in int8, added to the residual stream where one follows."""
    op, y, bias = _target(build, branch)
    output = RowsOutput((y,), "add" if branch.residual is not None else "store", bias)
    emit_small_batch(build, served, x, output, op.out)


# One matrix by itself -----------------------------------------------------------------------------


def lower_linear(build: PassBuilder, op: Linear, residual: Residual | None = None) -> None:
    """Emit a linear, added to the residual stream where one follows."""
    branch = Branch(op, residual)
    product = build.product((build.matrix(op.weight),))
    served = Served(product, build.choose(product))
    if served.family is Family.ONE_ROW:
        emit_one_row_branch(build, served, branch, Input(build.values.get(op.x)))
    elif served.family is Family.SMALL_BATCH:
        x = to_int8_rows(build, served, build.values.get(op.x), None, op.x)
        emit_small_batch_branch(build, served, branch, x)
    else:
        _emit_alone(build, served, branch)
    build.values.read(op.x)


def _emit_alone(build: PassBuilder, served: Served, branch: Branch) -> None:
    name, adds = branch.op.x, branch.residual is not None
    x = build.values.get(name)
    op, y, bias = _target(build, branch)
    if served.family is Family.INT8_TILES:
        rows = build.in_int8(name, x, served.k, served.reason)
        weight = served.product.weights[0]
        made = matmul_int8(build.ctx, weight, rows, y, bias=bias, accumulate=adds, label=op.out)
        build.emit(made, served.reason)
    else:
        emit_alone(build, served, x, y, bias=bias, accumulate=adds, label=op.out)


def emit_alone(
    build: PassBuilder,
    served: Served,
    x: BufferSlice,
    y: BufferSlice,
    *,
    bias: BufferSlice | None = None,
    accumulate: bool = False,
    single_row: bool = False,
    logits: bool = False,
    label: str,
) -> None:
    """Emit a product by a kernel that reads one matrix and rounds nothing to int8."""
    made = linear(
        served.chosen.candidate.context(served.product),
        served.product.weights[0],
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


def exact_product(
    build: PassBuilder, weight: GpuWeight, x: BufferSlice, y: BufferSlice, label: str
) -> None:
    """Emit a product whose outputs are f32 and whose inputs are never rounded to int8."""
    product = replace(build.product((weight,)), exact=True, fuses=False)
    served = Served(product, build.choose(product))
    emit_alone(build, served, x, y, logits=True, label=label)


def one_row_context(ctx: OpContext) -> OpContext:
    """Return the context of what runs on one row, whatever rows the pass has."""
    return replace(ctx, max_rows=1)
