"""The choice of a kernel for a matrix product, from a list in order of preference.

A request (`Product`) names the matrices and the ops that are to be fused into the launch. A kernel
either can serve it or returns why not. The lowering makes the phases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from rdrr_runtime.compile.choice.decision import Chosen, Reason, Wish, choose
from rdrr_runtime.compile.choice.hints import Hint
from rdrr_runtime.compile.choice.preferences import Arithmetic, Preferences
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.products import matmul_int8, matmul_subgroup, matvec, matvec_rows
from rdrr_runtime.phases.products.linear import GEMV_ROWS, crossover
from rdrr_runtime.phases.products.requantize import in_rows, is_rounded, whole_bytes
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


class Family(Enum):
    """Families of kernels, which differ in the form of their inputs and outputs."""

    ONE_ROW = "one row"
    """Products of one row, fused with a norm or join before and an activation or argmax after."""
    SMALL_BATCH = "small batch"
    """Products of rows quantized by `quantize_small_batch`, fused with an activation after."""
    INT8_TILES = "int8 tiles"
    """Products of rows that `quantize_rows` has quantized, in tiles."""
    MATRICES = "matrices"
    """Products of rows that `half_rows` has rounded to f16, in tiles of what subgroups multiply."""
    GENERAL = "general"
    """Products with one matrix, without fusion; each weight is read once for a small batch."""
    TILES = "tiles"
    """Products with one matrix, without fusion, in tiles of many rows."""


ROWS: Mapping[Family, range] = MappingProxyType(
    {
        Family.ONE_ROW: range(1, 2),
        Family.SMALL_BATCH: range(2, matvec_rows.MAX_ROWS + 1),
        Family.INT8_TILES: range(matmul_int8.MIN_ROWS, sys.maxsize),
        Family.MATRICES: range(matmul_subgroup.MIN_ROWS, sys.maxsize),
        Family.GENERAL: range(1, sys.maxsize),
        Family.TILES: range(1, sys.maxsize),
    }
)
"""Numbers of rows for which the kernels of each family are candidates."""

ROUNDING = (Family.SMALL_BATCH, Family.INT8_TILES)
"""Families whose products may round matrices to rows of Q8_0 first."""

TILED_FAMILIES = (Family.MATRICES, Family.INT8_TILES)
"""Families whose inputs are prepared by a phase that may compute the norm or activation before."""

FUSED_FAMILIES = (Family.ONE_ROW, Family.SMALL_BATCH)
"""Families that can fuse the ops around a product into the launch."""


@dataclass(frozen=True)
class Product:
    """The request for a product: its matrices, and the ops to be fused with it.

    Attributes:
        ctx: Rows of the product, and features and limits of the device.
        weights: One to four matrices [N, K] with the same K.
        fused: Whether several matrices, or the ops before or after them, share the launch.
        gate: Whether an activation joins the outputs of gate and up.
        partials: Number of partial results of attention to join before the product; 0 for none.
        separate_outputs: Whether each matrix has a y of its own.
        bias: Whether a bias is added.
        shared_bytes: Bytes of the buffer for matrices that are rounded before the product; None if
            matrices are rounded once, each into memory of its own.
        rounds_scalars: Whether 16-bit weights may be rounded to int8.
        exact: Whether activations must not be quantized to int8.
        may_fuse: Whether kernels that serve several ops may be used at all.
    """

    ctx: OpContext
    weights: tuple[GpuWeight, ...]
    fused: bool = False
    gate: bool = False
    partials: int = 0
    separate_outputs: bool = False
    bias: bool = False
    shared_bytes: int | None = 0
    rounds_scalars: bool = False
    exact: bool = False
    may_fuse: bool = True


Refusal = Callable[[Product], str | None]

INT8_ROWS: Mapping[tuple[bool, bool], int] = MappingProxyType(
    {(False, False): 32, (True, False): 16, (False, True): 16, (True, True): 4}
)
"""Rows up to which blocks are faster in int8 than on matrices of subgroups, by whether each product
rounds them to rows first, as they are column-major, and whether the rows are of a batch, whose
projections share a launch. On an H100 steps of 8, 16 and 32 sequences of llama-1b take 2.0, 2.0 and
2.3 ms column-major, in int8 3.0, 3.7 and 4.9; of 32 row-major 2.6 ms, in int8 2.9."""


@dataclass(frozen=True)
class ProductKernel:
    """A kernel that multiplies rows by matrices.

    Attributes:
        family: The family, which determines the form of inputs and outputs.
        int8: Whether activations are quantized to int8.
        subgroups: Whether the kernel sums with subgroup operations rather than in workgroup memory,
            where it supports both.
        refuses: Returns why the kernel cannot serve a request; None if it can.
    """

    family: Family
    int8: bool
    subgroups: bool
    refuses: Refusal

    @property
    def rounding(self) -> str:
        """Type to which the kernel rounds activations; empty for none."""
        return "int8" if self.int8 else "f16" if self.family is Family.MATRICES else ""

    @property
    def title(self) -> str:
        """Description of the kernel in explanations."""
        if self.family is Family.MATRICES:
            return "tiles of many rows, f16 matrices of subgroups"
        if self.family is Family.INT8_TILES:
            return "tiles of many rows, int8 activations"
        if self.family is Family.SMALL_BATCH:
            return "small batch, int8 activations"
        if self.family is Family.TILES:
            return "tiles of many rows"
        sums = "" if self.subgroups else ", sums through workgroup memory"
        if self.family is Family.GENERAL:
            return f"general product{sums}"
        return f"one-row product, {'int8' if self.int8 else 'float'} activations{sums}"

    def refusal(self, product: Product) -> str | None:
        """Return why the kernel cannot serve a request; None if it can."""
        if self.subgroups and not product.ctx.subgroups:
            return "the device has no feature subgroup"
        if self.int8 and not product.ctx.int8_dots:
            return "the device has no int8 dot products"
        if product.exact and self.rounding:
            return f"the inputs of this product must not be rounded to {self.rounding}"
        if self.family in ROUNDING and not product.rounds_scalars and _has_scalars(product):
            return "16-bit and 32-bit weights are rounded to int8 only by f16Matmul=int8"
        if self.family in FUSED_FAMILIES and not product.may_fuse:
            return "fused kernels are switched off"
        if product.fused and self.family not in (*FUSED_FAMILIES, Family.MATRICES):
            return "the kernel cannot be fused with other ops or matrices"
        return self.refuses(product)

    def context(self, product: Product) -> OpContext:
        """Return the context for the kernel's phases."""
        return product.ctx if self.subgroups else product.ctx.without_subgroups()


def _one_row(*, int8: bool) -> Refusal:
    def refusal(product: Product) -> str | None:
        partials, gate = product.partials, product.gate
        return matvec.refusal(product.ctx, product.weights, int8=int8, partials=partials, gate=gate)

    return refusal


def _small_batch(product: Product) -> str | None:
    weights, rounded = product.weights, [weight for weight in product.weights if is_rounded(weight)]
    if len(weights) > 1 or product.gate:
        sizes = [whole_bytes(weight) for weight in rounded]
        if product.shared_bytes is None:  # each has memory of its own, and is bound as a whole
            size, most = max(sizes, default=0), product.ctx.capabilities.max_binding
        else:
            size, most = sum(sizes), product.shared_bytes
        if size > most:
            return f"its matrices take {size} bytes as rows of Q8_0, and there are {most} for them"
    if not any(weight.form.values for weight in rounded) or len(rounded) == len(weights):
        weights = tuple(in_rows(weight) if is_rounded(weight) else weight for weight in weights)
    return matvec_rows.refusal(
        product.ctx,
        weights,
        apart=product.separate_outputs,
        bias=product.bias,
        gate=product.gate,
    )


def _int8_tiles(product: Product) -> str | None:
    return matmul_int8.refusal(product.ctx, product.weights[0])


def _matrices(product: Product) -> str | None:
    rounds = product.shared_bytes is not None and _all_columns(product)
    rows = INT8_ROWS[rounds, product.ctx.multi_sequence]
    if _has_blocks(product) and product.ctx.max_rows <= rows:
        return f"blocks are multiplied by up to {rows} rows in int8, faster"
    if not _has_blocks(product) and product.ctx.max_rows <= GEMV_ROWS:
        return f"16-bit weights are multiplied by up to {GEMV_ROWS} rows without rounding these"
    if product.gate or (product.fused and not _shares(product)):
        return "the kernel cannot be fused with other ops or matrices"
    if product.separate_outputs and len(product.weights) > matmul_subgroup.MOST_APART:
        most = matmul_subgroup.MOST_APART
        return f"at most {most} matrices share a launch if each has an output of its own"
    return matmul_subgroup.refusal(product.ctx, product.weights)


def _shares(product: Product) -> bool:
    """Return whether a product has several matrices, or combines splits, as a small batch may."""
    return len(product.weights) > 1 or product.partials > 0


def _never(product: Product) -> None:
    del product


_BOTH = (True, False)
_FUSED_AND_INT8 = (
    *(ProductKernel(Family.ONE_ROW, True, subgroups, _one_row(int8=True)) for subgroups in _BOTH),
    *(ProductKernel(Family.ONE_ROW, False, subgroups, _one_row(int8=False)) for subgroups in _BOTH),
    ProductKernel(Family.MATRICES, False, True, _matrices),
    ProductKernel(Family.SMALL_BATCH, True, False, _small_batch),
    ProductKernel(Family.INT8_TILES, True, False, _int8_tiles),
)
_GENERAL = tuple(ProductKernel(Family.GENERAL, False, subgroups, _never) for subgroups in _BOTH)
_TILES = ProductKernel(Family.TILES, False, False, _never)


def _in_order(product: Product) -> tuple[ProductKernel, ...]:
    """Return all kernels in order of preference, which for many rows puts tiles before the rest."""
    if product.ctx.max_rows <= crossover(product.weights):
        return (*_FUSED_AND_INT8, *_GENERAL, _TILES)
    return (*_FUSED_AND_INT8, _TILES, *_GENERAL)


def choose_product(product: Product, preferences: Preferences) -> Chosen[ProductKernel]:
    """Choose the kernel of a product with one matrix; the reason includes changes made at load."""
    rows = product.ctx.max_rows
    candidates = [candidate for candidate in _in_order(product) if rows in ROWS[candidate.family]]
    wishes = _wishes(product, preferences)
    chosen = choose(candidates, lambda candidate: candidate.refusal(product), wishes)
    return _with_notes(chosen, product, preferences)


def choose_fused(product: Product, preferences: Preferences) -> Chosen[ProductKernel] | None:
    """Choose the kernel of a product that fuses other ops; None if none satisfies all wishes.

    The caller then lowers the ops one by one.
    """
    wishes = _wishes(product, preferences)
    alone = _are_on_matrices(product, wishes)
    able = [kernel for kernel in _FUSED_AND_INT8 if product.ctx.max_rows in ROWS[kernel.family]]
    for kernel in able:
        if alone and kernel.family is not Family.MATRICES:
            continue
        if all(wish.accepts(kernel) for wish in wishes) and kernel.refusal(product) is None:
            said = ", ".join(wish.source for wish in wishes)
            return _with_notes(
                Chosen(kernel, Reason(f"{kernel.title} ({said})")), product, preferences
            )
    return None


def _with_notes(
    chosen: Chosen[ProductKernel], product: Product, preferences: Preferences
) -> Chosen[ProductKernel]:
    """Add to the reason the changes made to the matrices at load, and an overruled hint."""
    reason = chosen.reason
    overruled = _arithmetic(product, preferences).overruled
    if overruled is not None and reason.unmet is None:
        text = f"{reason.text}; {overruled.hint} is not honoured: {overruled.obstacle}"
        reason = Reason(text, overruled)
    notes = dict.fromkeys(weight.note for weight in product.weights if weight.note)
    if chosen.candidate.family in ROUNDING and any(map(is_rounded, product.weights)):
        times = "once" if product.shared_bytes is None else "in each pass"
        notes[f"weights rounded to rows of Q8_0 {times}"] = None
    return Chosen(chosen.candidate, replace(reason, text="; ".join((*notes, reason.text))))


def _all_columns(product: Product) -> bool:
    return all(weight.form.column for weight in product.weights)


def _are_on_matrices(product: Product, wishes: Sequence[Wish[ProductKernel]]) -> bool:
    """Return whether matrices of subgroups multiply weights that no other op is fused with."""
    alone = replace(product, fused=False, gate=False, separate_outputs=False)
    return any(
        kernel.family is Family.MATRICES
        and product.ctx.max_rows in ROWS[kernel.family]
        and all(wish.accepts(kernel) for wish in wishes)
        and kernel.refusal(alone) is None
        for kernel in _FUSED_AND_INT8
    )


def _has_blocks(product: Product) -> bool:
    return any(weight.dtype.is_block for weight in product.weights)


def _has_scalars(product: Product) -> bool:
    return not all(weight.dtype.is_block for weight in product.weights)


def _arithmetic(product: Product, preferences: Preferences) -> Arithmetic:
    return preferences.arithmetic if _has_blocks(product) else preferences.scalar_arithmetic


def _wishes(product: Product, preferences: Preferences) -> Sequence[Wish[ProductKernel]]:
    """Return the wishes for a product: hints for the type of its weights, else adapter defaults."""
    arithmetic = preferences.arithmetic
    if _has_blocks(product):
        return [Wish(arithmetic.source, _accepts(arithmetic), arithmetic.hint)]
    hint = preferences.hint("f16Matmul")
    asked = _kernel_wish(hint, product) if hint is not None else None
    return [_scalar_wish(product, preferences), *([asked] if asked is not None else [])]


def _accepts(arithmetic: Arithmetic) -> Callable[[ProductKernel], bool]:
    """Return which kernels have the arithmetic; matrices in f16 are a default, and no hint's."""
    return lambda kernel: (
        arithmetic.hint is None
        if kernel.family is Family.MATRICES
        else kernel.int8 is arithmetic.int8
    )


def _scalar_wish(product: Product, preferences: Preferences) -> Wish[ProductKernel]:
    """Return the wish for 16-bit and 32-bit weights: int8 by a hint, for 16 bits and many rows.

    A small batch takes the time of reading the weights, which rounding them would not save.
    """
    arithmetic = preferences.scalar_arithmetic
    rounded = all(map(is_rounded, product.weights)) and not product.exact
    if arithmetic.int8 and rounded and product.ctx.max_rows > GEMV_ROWS:
        return Wish(arithmetic.source, lambda kernel: kernel.family in ROUNDING, arithmetic.hint)
    return Wish(arithmetic.source, _accepts(replace(arithmetic, int8=False)))


def _kernel_wish(hint: Hint, product: Product) -> Wish[ProductKernel] | None:
    """Return the wish of `f16Matmul` for a kernel; `gemv` and `gemv_subgroup`: small batches."""
    if hint.value == "tiled":
        return Wish(str(hint), lambda kernel: kernel.family is Family.TILES, hint)
    if hint.value == "int8" or product.ctx.max_rows > GEMV_ROWS:
        return None
    subgroups = hint.value == "gemv_subgroup"
    families = (Family.ONE_ROW, Family.GENERAL)
    return Wish(
        str(hint), lambda kernel: kernel.family in families and kernel.subgroups is subgroups, hint
    )
