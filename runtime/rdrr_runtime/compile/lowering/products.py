"""Lowering of matrix products: single linears, and products fused with the ops around them.

Each family of kernels reads and writes its operands in its own form; this module makes the phases
for each family. `rdrr_runtime.compile.choice.products` decides which family serves a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey
from rdrr_manifests.graph.ops import GatedActivation, Linear, Residual, Router

from rdrr_runtime.compile.choice.decision import Chosen, Reason
from rdrr_runtime.compile.choice.products import (
    TILED_FAMILIES,
    Family,
    Product,
    ProductKernel,
    choose_fused,
)
from rdrr_runtime.compile.lowering.builder import PassBuilder
from rdrr_runtime.compile.patterns.layers import Branch
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.phases.products import matvec as one_row
from rdrr_runtime.phases.products import matvec_rows as small_batch
from rdrr_runtime.phases.products.fusion import AttentionSplits, GatedPair, Input, Output, RowNorm
from rdrr_runtime.phases.products.linear import linear
from rdrr_runtime.phases.products.matmul_int8 import matmul_int8
from rdrr_runtime.phases.products.matmul_subgroup import matmul_subgroup
from rdrr_runtime.phases.products.matvec import matvec
from rdrr_runtime.phases.products.matvec_rows import (
    can_normalise,
    matvec_rows,
    padded_batch_rows,
)
from rdrr_runtime.phases.products.quantize_small_batch import (
    quantize_small_batch,
    small_batch_bytes,
)
from rdrr_runtime.phases.products.requantize import is_rounded
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


@dataclass(frozen=True)
class Served:
    """A product and the kernel that serves it."""

    product: Product
    chosen: Chosen[ProductKernel]

    @property
    def family(self) -> Family:
        """The family of its kernel."""
        return self.chosen.candidate.family

    @property
    def reason(self) -> Reason:
        """Why the kernel was chosen."""
        return self.chosen.reason

    @property
    def int8(self) -> bool:
        """Whether its activations are quantized to int8."""
        return self.chosen.candidate.int8

    @property
    def rounding(self) -> str:
        """Type to which its activations are rounded; empty for none."""
        return self.chosen.candidate.rounding

    @property
    def by_column(self) -> bool:
        """Whether any of its matrices is column-major, with blocks along the outputs."""
        return any(weight.by_column for weight in self.product.weights)

    @property
    def halves(self) -> bool:
        """Whether int8 products of several rows read an input with a scale for each 16 elements.

        Their column-major matrices are rounded to int8 too, which adds as much to the error as the
        finer scales of the input take away.
        """
        return all(weight.by_column for weight in self.product.weights)

    @property
    def k(self) -> int:
        """Inputs per row."""
        return self.product.weights[0].k


def fused_product(
    build: PassBuilder,
    weights: Sequence[GpuWeight],
    ctx: OpContext | None = None,
    **options: Any,
) -> Served | None:
    """Return a product fused with the ops around it; None if no kernel can serve it as wished.

    Args:
        build: The pass under construction.
        weights: One to four matrices [N, K] with the same K.
        ctx: Rows, features and limits of the product; those of the pass when None.
        options: Further fields of `Product`.
    """
    product = replace(build.product(weights, ctx), fused=True, **options)
    chosen = choose_fused(product, build.model.preferences)
    return None if chosen is None else Served(product, chosen)


def int8_gate(
    build: PassBuilder, gated: Served, down: Served, activation: GatedActivation
) -> tuple[Output, Input] | None:
    """Return the output of a gated product in int8, and the input that the next product reads.

    Args:
        build: The pass under construction.
        gated: The gated product.
        down: The product that reads its output.
        activation: The activation of gate and up.

    Returns:
        None if the kernels cannot leave or read it in int8.
    """
    if not _can_hand_over(build, gated, down, activation.width):
        return None
    handed = _int8_handover(build, down)
    output = Output(
        (handed.x,),
        "gate",
        activation=activation.activation,
        clamp=activation.clamp,
        int8=True,
        halves=down.halves,
        scales=handed.scales,
    )
    return output, handed


def _can_hand_over(build: PassBuilder, gated: Served, down: Served, width: int) -> bool:
    if down.family is not gated.family or not (gated.int8 and down.int8):
        return False
    if gated.family is Family.ONE_ROW:
        if down.by_column or gated.by_column:
            return False
        return one_row.can_quantize_output(build.ctx, width)
    return small_batch.can_quantize_output(build.ctx, width)


def _int8_handover(build: PassBuilder, served: Served) -> Input:
    """Return the buffers in which a gated product leaves its int8 output for the next product."""
    if served.family is Family.SMALL_BATCH:
        return Input(small_batch_rows(build, "int8 gated", served.k), int8=True)
    codes = build.workspace.named("gated", served.k)
    scales = build.workspace.named("gated scales", served.k // 2)
    return Input(codes, int8=True, scales=scales)


def emit_product(
    build: PassBuilder,
    served: Served,
    source: Input,
    output: Output,
    label: str,
    *,
    single_row: bool = False,
    logits: bool = False,
    depends: tuple[AnyTuningKey, ...] = (),
) -> Sequence[Phase]:
    """Emit a product, preceded by the quantization of its input to int8 if the kernel needs it.

    Args:
        build: The pass under construction.
        served: The product and its kernel.
        source: The input; it may include the op before the product only for `FUSED_FAMILIES`, and
            for `TILED_FAMILIES` a `RowNorm` or `GatedPair`.
        output: Where the results go, and how they are combined.
        label: Label of the op.
        single_row: Multiply only one row, however many the pass has; the head does so.
        logits: Write f32, whatever the type of activations.
        depends: Tuning keys that the input of a one-row product depends on.

    Returns:
        The phases of the product, where some may round matrices before; the last one multiplies.
    """
    ctx, weights = served.chosen.candidate.context(served.product), served.product.weights
    bias, adds = output.bias, output.kind == "add"
    if served.family is Family.ONE_ROW:
        phases = matvec(
            ctx, weights, source, output, int8=served.int8, label=label, tuning_keys=depends
        )
    elif served.family is Family.SMALL_BATCH:
        phases = _small_batch(build, served, source, output, label)
    elif served.family is Family.INT8_TILES:
        phases = _int8_tiles(build, served, source, output, label)
    elif served.family is Family.MATRICES:
        phases = _matrices(build, served, source, output, label)
    else:
        phases = linear(
            ctx,
            weights[0],
            source.x,
            output.ys[0],
            bias=bias,
            accumulate=adds,
            single_row=single_row,
            logits=logits,
            tiled=served.family is Family.TILES,
            label=label,
        )
    build.emit(phases, served.reason)
    return phases


def _int8_tiles(
    build: PassBuilder, served: Served, source: Input, output: Output, label: str
) -> list[Phase]:
    """Return the tiled product, its matrix rounded to Q8_0 rows before where it must be."""
    before = source.before
    assert before is None or isinstance(before, RowNorm | GatedPair), "others are of one row"
    rows = build.quantized(
        source.name, source.x, served.k, served.reason, before=before, halves=served.halves
    )

    def products(weights: Sequence[GpuWeight]) -> list[Phase]:
        return matmul_int8(
            build.ctx,
            weights[0],
            rows,
            output.ys[0],
            bias=output.bias,
            accumulate=output.kind == "add",
            label=label,
        )

    return _of_rows(build, served, products, label)


def _matrices(
    build: PassBuilder, served: Served, source: Input, output: Output, label: str
) -> list[Phase]:
    """Return the tiled product on matrices of subgroups."""
    before = source.before
    assert before is None or isinstance(before, RowNorm | GatedPair | AttentionSplits), "one row's"
    rows = build.halved(source.name, source.x, served.k, served.reason, before=before)
    return matmul_subgroup(
        build.ctx,
        served.product.weights,
        rows,
        output.ys,
        bias=output.bias,
        accumulate=output.kind == "add",
        room=partial(build.workspace.named, "sums of splits"),
        label=label,
    )


def _small_batch(
    build: PassBuilder, served: Served, source: Input, output: Output, label: str
) -> list[Phase]:
    """Return the product with a small batch, its matrices rounded to Q8_0 rows where they must."""
    norm = source.before if isinstance(source.before, RowNorm) else None
    stages = not served.halves and can_normalise(build.ctx, served.product.weights, output)
    before = norm if stages else None
    x = source.x
    if not source.int8 and before is None:
        x = _small_batch_in_int8(build, served, source)

    def products(weights: Sequence[GpuWeight]) -> list[Phase]:
        return matvec_rows(
            build.ctx,
            tuple(weights),
            x,
            output,
            halves=served.halves,
            before=before,
            label=label,
        )

    return _of_rows(build, served, products, label)


def _of_rows(
    build: PassBuilder,
    served: Served,
    products: Callable[[Sequence[GpuWeight]], list[Phase]],
    label: str,
) -> list[Phase]:
    """Return a product of Q8_0 rows, after the phases that round the matrices that are not rows.

    Args:
        build: The pass under construction.
        served: The product.
        products: Returns the phases of the product with such matrices, one for each part of a
            single matrix.
        label: Label of the op.
    """
    weights = served.product.weights
    rounded = [weight for weight in weights if is_rounded(weight)]
    if not rounded:
        return products(weights)
    requantized = build.requantized(rounded, label)
    rows = iter(requantized)
    phases = products([next(rows).weight if is_rounded(weight) else weight for weight in weights])
    if len(weights) == 1:
        return requantized[0].before(phases)
    return [*(phase for matrix in requantized for phase in matrix.phases), *phases]


def emit_branch(
    build: PassBuilder,
    served: Served,
    branch: Branch,
    source: Input,
    depends: tuple[AnyTuningKey, ...] = (),
) -> None:
    """Emit a linear with a given input, added to the residual stream if one follows."""
    op, residual = branch.op, branch.residual
    assert isinstance(op, Linear), "only linears have such products"
    bias = None if op.bias is None else build.vector(op.bias)
    y = build.target(op.out, op.weight.shape[0], residual)
    output = Output((y,), "store" if residual is None else "add", bias)
    emit_product(build, served, source, output, op.out, depends=depends)


def _small_batch_in_int8(build: PassBuilder, served: Served, source: Input) -> BufferSlice:
    """Emit the quantization of a small batch to int8, including the norm or join before it."""
    target = small_batch_rows(build, "int8 rows", served.k)
    label, before = f"{source.name}.int8", source.before
    assert before is None or isinstance(before, RowNorm | AttentionSplits), "others are of one row"
    phases = quantize_small_batch(
        build.ctx, source.x, target, k=served.k, before=before, halves=served.halves, label=label
    )
    build.emit(phases, served.reason)
    return target


def small_batch_rows(build: PassBuilder, name: str, k: int) -> BufferSlice:
    """Return a buffer for the int8 input of a small-batch product."""
    rows = build.ctx.max_rows
    return build.workspace.named(
        f"{name}.{rows}.{k}", small_batch_bytes(padded_batch_rows(rows), k)
    )


def tiled(build: PassBuilder, linears: Sequence[Linear]) -> tuple[Served, ...] | None:
    """Return the product of each linear if all are of `TILED_FAMILIES`, else None.

    These read their input rounded, so the op before them can be computed as it is rounded.
    """
    served = tuple(_alone(build, linear) for linear in linears)
    fits = build.model.may_fuse and all(product.family in TILED_FAMILIES for product in served)
    return served if fits else None


def lower_linear(build: PassBuilder, op: Linear, residual: Residual | None = None) -> None:
    """Emit a single linear, added to the residual stream if one follows."""
    source = build.uncombined.pop(op.x, None) or Input(build.values.get(op.x), name=op.x)
    emit_branch(build, _alone(build, op), Branch(op, residual), source)
    build.values.mark_read(op.x)


def _alone(build: PassBuilder, op: Linear) -> Served:
    """Return the product of a linear with no other op fused into it."""
    product = build.product((build.matrix(op.weight),))
    return Served(product, build.choose(product))


def combines_splits(build: PassBuilder, op: Linear, head_dim: int) -> bool:
    """Return whether `lower_linear` can combine partial results of attention as it reads them."""
    return _alone(build, op).family is Family.SMALL_BATCH and head_dim % 16 == 0


def exact_product(build: PassBuilder, op: Router, y: BufferSlice) -> None:
    """Emit a router's product, whose output is f32 and whose input is never quantized."""
    product = replace(build.product((build.matrix(op.weight),)), exact=True, may_fuse=False)
    served = Served(product, build.choose(product))
    source = Input(build.values.get(op.x), name=op.x)
    bias = None if op.bias is None else build.vector(op.bias)
    emit_product(build, served, source, Output((y,), bias=bias), op.out, logits=True)
