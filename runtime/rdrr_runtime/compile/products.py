"""The kernels that multiply rows by matrices, in order of preference, and the choice among them.

A request says what is multiplied and what is to be folded into the launch; a kernel refuses it in a
sentence or can serve it. The launch itself is made by the lowering.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from rdrr_runtime.compile.decision import Chosen, Reason, Wish, choose
from rdrr_runtime.compile.hints import Hint
from rdrr_runtime.compile.preferences import Preferences
from rdrr_runtime.phases import matmul_int8, matvec, matvec_rows
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.linear import GEMV_ROWS


class Family(Enum):
    """Kernels that differ in what a launch takes and leaves."""

    ONE_ROW = "one row"
    """A norm or a join of partial results before, an activation or an argmax after it."""
    SMALL_BATCH = "small batch"
    """Rows in int8 as `quantize_small_batch` leaves them; an activation after it."""
    INT8_TILES = "int8 tiles"
    """Rows in int8 as `quantize_rows` leaves them."""
    GENERAL = "general"
    """One matrix, nothing folded in, each weight read once for a small batch."""
    TILES = "tiles"
    """One matrix, nothing folded in, for many rows."""


ROWS: Mapping[Family, range] = MappingProxyType(
    {
        Family.ONE_ROW: range(1, 2),
        Family.SMALL_BATCH: range(2, matvec_rows.MAX_ROWS + 1),
        # From 2 rows on where nothing else reads the matrix in int8; the kernel says which.
        Family.INT8_TILES: range(2, sys.maxsize),
        Family.GENERAL: range(1, sys.maxsize),
        Family.TILES: range(1, sys.maxsize),
    }
)
"""Rows that each family serves; beyond them its kernels are no candidates."""

FOLDING = (Family.ONE_ROW, Family.SMALL_BATCH)
"""Families whose launches can take in the ops around a product."""


@dataclass(frozen=True)
class Product:
    """What is multiplied, and what is wanted of the launch.

    Attributes:
        ctx: Where it runs; its rows are those of the product.
        weights: One to three matrices [N, K] of one K.
        folds: Whether several matrices, or what stands before or after them, share the launch.
        gate: Whether gate and up are joined by an activation.
        partials: Partial results of attention that are joined on the way in.
        apart: Whether each matrix has a y of its own.
        bias: Whether a bias is added.
        exact: Whether rounding activations to int8 is out of the question.
        fuses: Whether kernels that serve several ops may be used at all.
    """

    ctx: OpContext
    weights: tuple[GpuWeight, ...]
    folds: bool = False
    gate: bool = False
    partials: int = 0
    apart: bool = False
    bias: bool = False
    exact: bool = False
    fuses: bool = True


Refusal = Callable[[Product], str | None]


@dataclass(frozen=True)
class ProductKernel:
    """A way to multiply.

    Attributes:
        family: What its launch takes and leaves.
        int8: Whether activations are rounded to int8.
        subgroups: Whether sums go through subgroup operations where a kernel has both ways.
        refuses: Why it cannot serve a request; None if it can.
    """

    family: Family
    int8: bool
    subgroups: bool
    refuses: Refusal

    @property
    def title(self) -> str:
        """What it is, for explanations."""
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
        """Return why it cannot serve a request; None if it can."""
        if self.subgroups and not product.ctx.subgroups:
            return "the device has no feature subgroup"
        if self.int8 and product.exact:
            return "what it computes must not be rounded to int8"
        if self.family in FOLDING and not product.fuses:
            return "fused kernels are switched off"
        if product.folds and self.family not in FOLDING:
            return "it serves one matrix at a time"
        return self.refuses(product)

    def context(self, product: Product) -> OpContext:
        """Return the context that its launch is made in."""
        return product.ctx if self.subgroups else product.ctx.without_subgroups()


def _one_row(*, int8: bool) -> Refusal:
    def refusal(product: Product) -> str | None:
        partials, gate = product.partials, product.gate
        return matvec.refusal(product.ctx, product.weights, int8=int8, partials=partials, gate=gate)

    return refusal


def _small_batch(product: Product) -> str | None:
    apart, bias = product.apart, product.bias
    return matvec_rows.refusal(product.ctx, product.weights, apart=apart, bias=bias)


def _int8_tiles(product: Product) -> str | None:
    return matmul_int8.refusal(product.ctx, product.weights[0])


def _never(product: Product) -> None:
    del product


_BOTH = (True, False)
_FOLDING_AND_INT8 = (
    *(ProductKernel(Family.ONE_ROW, True, one, _one_row(int8=True)) for one in _BOTH),
    *(ProductKernel(Family.ONE_ROW, False, one, _one_row(int8=False)) for one in _BOTH),
    ProductKernel(Family.SMALL_BATCH, True, False, _small_batch),
    ProductKernel(Family.INT8_TILES, True, False, _int8_tiles),
)
_GENERAL = tuple(ProductKernel(Family.GENERAL, False, one, _never) for one in _BOTH)
_TILES = ProductKernel(Family.TILES, False, False, _never)


def _in_order(rows: int) -> tuple[ProductKernel, ...]:
    """Return all kernels in order of preference: reading each weight once per row, or tiles."""
    if rows <= GEMV_ROWS:
        return (*_FOLDING_AND_INT8, *_GENERAL, _TILES)
    return (*_FOLDING_AND_INT8, _TILES, *_GENERAL)


def choose_product(product: Product, preferences: Preferences) -> Chosen[ProductKernel]:
    """Return the kernel of a product of one matrix and why, with what was done to it at load."""
    rows = product.ctx.max_rows
    candidates = [one for one in _in_order(rows) if rows in ROWS[one.family]]
    wishes = _wishes(product, preferences)
    found = choose(candidates, lambda one: one.refusal(product), wishes)
    return _with_notes(found, product, preferences)


def choose_folding(product: Product, preferences: Preferences) -> Chosen[ProductKernel] | None:
    """Return the kernel of a product that folds other ops in; None where none is all it should be.

    What cannot be folded as it is wished is served op by op.
    """
    wishes = _wishes(product, preferences)
    able = [one for one in _FOLDING_AND_INT8 if product.ctx.max_rows in ROWS[one.family]]
    for one in able:
        if all(wish.accepts(one) for wish in wishes) and one.refusal(product) is None:
            said = ", ".join(wish.source for wish in wishes)
            return _with_notes(Chosen(one, Reason(f"{one.title} ({said})")), product, preferences)
    return None


def _with_notes(
    found: Chosen[ProductKernel], product: Product, preferences: Preferences
) -> Chosen[ProductKernel]:
    """Add what was done to the matrices at load, and a hint that another hint overrules."""
    reason = found.reason
    overruled = preferences.arithmetic.overruled
    if overruled is not None and reason.unmet is None and _has_blocks(product):
        text = f"{reason.text}; {overruled.hint} is not honoured: {overruled.obstacle}"
        reason = Reason(text, overruled)
    notes = dict.fromkeys(one.note for one in product.weights if one.note)
    return Chosen(found.candidate, replace(reason, text="; ".join((*notes, reason.text))))


def _has_blocks(product: Product) -> bool:
    return any(one.dtype.is_block for one in product.weights)


def _wishes(product: Product, preferences: Preferences) -> Sequence[Wish[ProductKernel]]:
    """Return what is asked of a product: by hints of its weights' type, else by the adapter."""
    arithmetic = preferences.arithmetic
    if _has_blocks(product):
        int8 = arithmetic.int8
        if arithmetic.hint is None and _is_small_column_batch(product):
            int8 = False
        return [Wish(arithmetic.source, _in_int8(wanted=int8), arithmetic.hint)]
    hint = preferences.hint("f16Matmul")
    asked = _kernel_wish(hint, product) if hint is not None else None
    return [_scalar_wish(preferences), *([asked] if asked is not None else [])]


def _is_small_column_batch(product: Product) -> bool:
    """Return whether rows are several, but too few for int8 tiles of column-major matrices.

    On an H200 reading such a matrix once for 8 rows beats the tiles up to there: 2.4 times as fast
    for 2 rows, 1.6 times for 8; of 16 rows the tiles take 0.6 of the time.
    """
    few = 1 < product.ctx.max_rows <= GEMV_ROWS
    return few and any(one.by_column for one in product.weights)


def _in_int8(*, wanted: bool) -> Callable[[ProductKernel], bool]:
    return lambda kernel: kernel.int8 is wanted


def _scalar_wish(preferences: Preferences) -> Wish[ProductKernel]:
    """Return what is asked of 16-bit and 32-bit weights: tiles in int8 are for many rows only."""
    arithmetic = preferences.arithmetic
    if preferences.rounds_16_bit_weights:
        return Wish(
            arithmetic.source, lambda kernel: kernel.family is Family.INT8_TILES or not kernel.int8
        )
    return Wish(arithmetic.source if arithmetic.hint else "auto", _in_int8(wanted=False))


def _kernel_wish(hint: Hint, product: Product) -> Wish[ProductKernel] | None:
    """Return what `f16Matmul` asks for; `gemv` and `gemv_subgroup` are for small batches."""
    if hint.value == "tiled":
        return Wish(str(hint), lambda kernel: kernel.family is Family.TILES, hint)
    if product.ctx.max_rows > GEMV_ROWS:
        return None
    subgroups = hint.value == "gemv_subgroup"
    few = (Family.ONE_ROW, Family.GENERAL)
    return Wish(
        str(hint), lambda kernel: kernel.family in few and kernel.subgroups is subgroups, hint
    )
