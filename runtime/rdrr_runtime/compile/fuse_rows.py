"""Fusions of the passes over a few rows: batches, windows, guesses to verify.

Each serves a run of ops by `int8_rows` and `matvec_rows` and returns how many ops that were, or 0
where something does not fit: the general lowering then takes over. Which passes have few rows is
what `matvec_rows` says that it suits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import GatedActivation, Linear, Norm, Op, Residual

from rdrr_runtime.compile.fuse import attention_spec, emit_attention, joined_bias, match_projections
from rdrr_runtime.compile.lower_attention import placed_attention
from rdrr_runtime.compile.normed_linears import find_normed_linears
from rdrr_runtime.compile.select import Why
from rdrr_runtime.phases.attention_decode import SplitTuning
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.int8_rows import RowNorm, RowParts, int8_rows, int8_rows_bytes
from rdrr_runtime.phases.matvec_rows import (
    RowsOutput,
    buffers_bound,
    leaves_int8,
    matvec_rows,
    rows_held,
    suits,
)

if TYPE_CHECKING:
    from rdrr_runtime.compile.fuse import Fusion
    from rdrr_runtime.compile.lower import Lowering


SPLIT = SplitTuning(128, 16)
"""Parts of the keys of a row: rows fill a device together, so fewer than for a lone text."""


@dataclass(frozen=True)
class RowsProduct:
    """A product of a few rows with some matrices."""

    low: Lowering
    weights: tuple[GpuWeight, ...]

    @property
    def suits(self) -> bool:
        """Whether hints allow the int8 kernel and it can run."""
        return self.low.select.matmul(self.weights).int8 and suits(self.low.ctx, self.weights)

    @property
    def why(self) -> Why:
        """The reason for it."""
        rows = self.low.ctx.max_rows
        return self.low.select.why_matmul(self.low.ctx, self.weights, rows, int8=True)

    def room(self, name: str) -> BufferSlice:
        """A buffer for what it multiplies."""
        rows, k = self.low.ctx.max_rows, self.weights[0].k
        size = int8_rows_bytes(rows_held(rows), k)
        return self.low.workspace.named(f"{name}.{rows}.{k}", size)

    def take(self, x: BufferSlice, before: RowNorm | RowParts | None, label: str) -> BufferSlice:
        """The rows in int8, after their norm, or joined from parts, where there is either."""
        low, k = self.low, self.weights[0].k
        target = self.room("int8 rows")
        made = int8_rows(low.ctx, x, target, k=k, before=before, label=f"{label}.int8")
        low.emit(made, self.why)
        return target

    def take_normed(self, norm: Norm) -> BufferSlice:
        """What a norm makes of its rows, in int8; counts it as read."""
        gain = self.low.weights.vectors[norm.weight.name]
        given = RowNorm(gain, norm.eps, float(norm.unit_offset))
        return self.take(self.low.values.get(norm.x), given, norm.out)

    def emit(self, x: BufferSlice, output: RowsOutput, label: str) -> None:
        """Multiply what `take` left."""
        self.low.emit(matvec_rows(self.low.ctx, self.weights, x, output, label=label), self.why)


def projections(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """A norm and the linears that read it in two launches, then what stood between these.

    Projections of a layer are followed by its attention.
    """
    found = find_normed_linears(ops, index)
    if found is None:
        return 0
    norm, linears, others, end = found.norm, found.linears, found.others, found.end
    product = RowsProduct(low, tuple(low.weights.matrices[one.weight.name] for one in linears))
    has_bias = linears[0].bias is not None
    fits = buffers_bound(product.weights, bias=has_bias) <= low.max_buffers and len(linears) <= 3
    alike = all((one.bias is not None) == has_bias for one in linears)
    if not (product.suits and fits and alike and low.values.readers[norm.out] == len(linears)):
        return 0
    x = product.take_normed(norm)
    low.values.read(norm.x)
    ys = tuple(low.values.take(one.out, one.weight.shape[0]) for one in linears)
    names = [one.bias.name for one in linears if one.bias is not None]
    bias = low.weights.joined(names) if names else None
    others_of_it = (one.out.rpartition(".")[2] for one in linears[1:])
    product.emit(x, RowsOutput(ys, bias=bias), "+".join((linears[0].out, *others_of_it)))
    layer = match_projections(ops, index)
    if layer is not None and placed_attention(low, layer):
        return layer.count
    for op in others:
        low.lower(op)
    return end - index


def gated(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """Norm, gate and up (one matrix or two), activation; the projection after it, given int8."""
    found = find_normed_linears(ops, index)
    if found is None:
        return 0
    norm, linears, others, end = found.norm, found.linears, found.others, found.end
    activation = ops[end] if end < len(ops) else None
    if not isinstance(activation, GatedActivation) or others:
        return 0
    operands = [name for name in (activation.gate, activation.up) if name is not None]
    product = RowsProduct(low, tuple(low.weights.matrices[one.weight.name] for one in linears))
    fits = [one.out for one in linears] == operands and not any(one.bias for one in linears)
    if not (fits and product.suits and low.values.readers[norm.out] == len(linears)):
        return 0
    x = product.take_normed(norm)
    low.values.read(norm.x)
    down = ops[end + 1] if end + 1 < len(ops) else None
    if isinstance(down, Linear) and down.x == activation.out:
        closing = RowsProduct(low, (low.weights.matrices[down.weight.name],))
        once = low.values.readers[activation.out] == 1
        if closing.suits and once and leaves_int8(low.ctx, activation.width):
            handed = closing.room("int8 gated")
            output = RowsOutput((handed,), "gate", activation=activation.activation, int8=True)
            product.emit(x, output, activation.out)
            return end + 1 - index + _project(closing, ops, end + 1, handed)
    y = low.values.take(activation.out, activation.width)
    output = RowsOutput((y,), "gate", activation=activation.activation)
    product.emit(x, output, activation.out)
    return end + 1 - index


def lone(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """A linear, with the residual after it where there is one."""
    linear = ops[index]
    if not isinstance(linear, Linear):
        return 0
    product = RowsProduct(low, (low.weights.matrices[linear.weight.name],))
    if not product.suits:
        return 0
    x = product.take(low.values.get(linear.x), None, linear.x)
    served = _project(product, ops, index, x)
    low.values.read(linear.x)
    return served


def _project(product: RowsProduct, ops: Sequence[Op], index: int, x: BufferSlice) -> int:
    """The linear at `index` of rows in int8, added to the residual stream where that follows."""
    low, linear = product.low, ops[index]
    assert isinstance(linear, Linear)
    following = ops[index + 1] if index + 1 < len(ops) else None
    bias = None if linear.bias is None else low.weights.vectors[linear.bias.name]
    if isinstance(following, Residual) and low.can_add(linear, following):
        output = RowsOutput((low.values.get(following.x),), "add", bias)
        product.emit(x, output, linear.out)
        low.values.rename(following.x, following.out)
        return 2
    y = low.values.take(linear.out, linear.weight.shape[0])
    product.emit(x, RowsOutput((y,), bias=bias), linear.out)
    return 1


def attention_of_texts(low: Lowering, ops: Sequence[Op], index: int) -> int:
    """From a layer's first norm to its output projection, where each row is of another text."""
    found = match_projections(ops, index)
    after = index + found.count if found else len(ops)
    output = ops[after] if after < len(ops) else None
    if found is None or not isinstance(output, Linear) or output.x != found.attention.out:
        return 0
    product = RowsProduct(low, tuple(low.weights.matrices[o.weight.name] for o in found.linears))
    closing = RowsProduct(low, (low.weights.matrices[output.weight.name],))
    spec = replace(attention_spec(low, found), split=SPLIT)
    if not (
        low.select.fuses_attention()
        and product.suits
        and closing.suits
        and spec.suits(low.ctx, low.max_buffers)
        and spec.cache.head_dim % 16 == 0
        and len({one.bias is None for one in found.linears}) == 1
    ):
        return 0
    rows, layer = low.ctx.max_rows, f"layer {found.attention.layer}"
    size = 4 * rows * sum(one.n for one in product.weights)
    projected = low.workspace.named(f"projected.{rows}", size)
    x = product.take_normed(found.norm)
    low.values.read(found.norm.x)
    joined = RowsOutput((projected,), bias=joined_bias(low, found.linears))
    product.emit(x, joined, f"{layer} qkv")
    parts, stats = emit_attention(low, found, spec, projected)
    given = RowParts(stats, spec.splits, spec.cache.head_dim)
    x = closing.take(parts, given, f"{layer} attention")
    return found.count + _project(closing, ops, after, x)


ROWS_FUSIONS: tuple[Fusion, ...] = (gated, projections, lone)
"""Tried in order at each op of a pass over several rows."""

TEXTS_FUSIONS: tuple[Fusion, ...] = (attention_of_texts, *ROWS_FUSIONS)
"""The same for a pass whose rows are of different texts."""


def head_of_rows(
    low: Lowering, norm: Norm, weight: GpuWeight, x: BufferSlice, logits: BufferSlice
) -> bool:
    """The final norm and the logits of all rows; False where something does not fit."""
    product = RowsProduct(low, (weight,))
    if not product.suits:
        return False
    gain = low.weights.vectors[norm.weight.name]
    given = RowNorm(gain, norm.eps, float(norm.unit_offset))
    product.emit(product.take(x, given, "final norm"), RowsOutput((logits,)), "head")
    return True
