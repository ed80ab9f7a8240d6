"""Random operands of the decode pass's fused products, and those products in float64.

Products in int8 are compared with products of the same inputs, rounded as the kernel rounds them:
with one scale per 16 inputs, before the common factor of a norm, and after the scales of a
column-major matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_format.block_fields import BLOCK_FIELDS
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.products.added_branch import AddedBranch, BranchNorm
from rdrr_runtime.phases.products.fusion import (
    AttentionSplits,
    GatedNorm,
    HeadGates,
    Input,
    RowLayerNorm,
    RowNorm,
)
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight
from rdrr_runtime.phases.weights.packing import upload_weight
from support.gpu import F32, Bench, in_int8, normal, random_tensor

F64 = npt.NDArray[np.float64]

EPS = 1e-5

GROUP = 16
"""Number of inputs that share a scale when they are rounded to int8."""

NEAR_TIE = 1e-3
"""Codes that are this near to the middle between two integers may be rounded either way.

That is well above what f32 arithmetic in another order changes a code of 127 by, at most 1e-4.
"""

ROUNDS = 200
"""Attempts to move inputs away from ties; a few are enough."""


def silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))


@dataclass(frozen=True)
class Matrix:
    """A weight matrix on the device, and its values as `scale * code + offset`.

    Attributes:
        weight: The matrix on the device.
        values: f64 [N, K].
        scales: f32 [N, K] by which inputs are multiplied before they are rounded; ones [1, 1] for
            a row-major matrix, whose codes include its scales.
        codes: f64 [N, K] that rounded inputs are multiplied by.
        offsets: f64 [N, K] that inputs are multiplied by unrounded; zeros for a row-major matrix.
    """

    weight: GpuWeight
    values: F64
    scales: F32
    codes: F64
    offsets: F64

    def product(self, x: F64) -> F64:
        """Return the exact product with `x` [K]."""
        return self.values @ x

    def int8_product(self, x: F32) -> F64:
        """Return the product with `x` [K] rounded to int8, but otherwise exact."""
        rounded = in_int8(x * self.scales, GROUP).astype(np.float64)
        return (rounded * self.codes).sum(1) + self.offsets @ x


@dataclass(frozen=True)
class Source:
    """The input vector that a launch multiplies the matrices by.

    Attributes:
        operand: The input on the device.
        x: f32 [K], the input that is rounded.
        factor: Factor that a norm applies to the products; 1 without a norm.
    """

    operand: Input
    x: F32
    factor: float = 1.0

    def products(self, matrices: list[Matrix], *, int8: bool) -> F64:
        """Return the products with all matrices, one after the other, exact or in int8."""
        products = [
            matrix.int8_product(self.x) if int8 else matrix.product(self.x.astype(np.float64))
            for matrix in matrices
        ]
        return np.concatenate(products) * self.factor


@dataclass(frozen=True)
class BranchForm:
    """What a product does with a normed branch before it multiplies.

    Attributes:
        has_norm: Whether a norm of the sum follows.
        is_scaled: Whether the sum is multiplied by a weight.
        is_stored: Whether the sum is stored.
    """

    has_norm: bool = True
    is_scaled: bool = False
    is_stored: bool = True


@dataclass
class Operands:
    """Random operands of a launch, on the device and as arrays."""

    bench: Bench
    rng: np.random.Generator
    layout: Layout = Layout.ROW
    units_first: bool = False

    def matrix(self, name: str, n: int, k: int) -> Matrix:
        raw, values = random_tensor(self.rng, name, self.layout, (n, k))
        arena, kind, first = self.bench.arena, DTYPES[name], self.units_first
        weight = upload_weight(arena, kind, self.layout, (n, k), raw, "w", units_first=first)
        exact = values.astype(np.float64)
        if self.layout is not Layout.COLUMN or name not in BLOCK_FIELDS:
            return Matrix(weight, exact, np.ones((1, 1), np.float32), exact, np.zeros_like(exact))
        scales, offsets = column_scales(name, raw, (n, k))
        codes = np.rint((exact - offsets) / np.where(scales == 0, 1, scales))
        return Matrix(weight, exact, scales, codes, offsets)

    def uploaded(self, name: str, values: F32) -> Matrix:
        """Return a row-major matrix of given values of an unquantized type."""
        raw = CODECS[name].quantize(values)
        weight = upload_weight(self.bench.arena, DTYPES[name], Layout.ROW, values.shape, raw, "w")
        exact = values.astype(np.float64)
        return Matrix(weight, exact, np.ones((1, 1), np.float32), exact, np.zeros_like(exact))

    def source(self, kind: str, k: int, matrices: list[Matrix]) -> Source:
        """Return an input that is `plain`, before its `norm`, or in splits to `combine`.

        Heads to combine may have gates (`gated combine`), or be normed before their gates
        (`gated`). LayerNorm has a weight and a bias (`layer norm`) or neither (`bare layer norm`).
        No code of it is near a tie, whichever of the matrices it is rounded for.
        """
        if kind in ("combine", "gated combine"):
            gates = self.gates(k, 32, "sigmoid") if kind != "combine" else None
            return self.combined(k, matrices, head_dim=32, splits=5, live=3, gates=gates)
        if kind == "gated":
            return self.gated(k, matrices, head_dim=24, blocks=3)
        if kind.endswith("layer norm"):
            return self.layer_norm(k, matrices, is_bare=kind.startswith("bare"))
        x, gain = normal(self.rng, k), normal(self.rng, k)
        scale = 1 + gain if kind == "norm" else np.float32(1)
        x *= self.away_from_ties(x * scale, matrices)
        upload = self.bench.upload
        if kind == "plain":
            return Source(Input(upload(x)), x)
        root = np.sqrt(np.mean(x.astype(np.float64) ** 2) + EPS)
        norm = RowNorm(upload(gain), EPS, 1.0)
        return Source(Input(upload(x), norm), x * scale, 1 / root)

    def gates(self, k: int, head_dim: int, activation: str) -> tuple[HeadGates, F32]:
        """Return gates that lie beside other values, and their activations, f32 [K]."""
        first, stride = 5, head_dim + 9
        held = normal(self.rng, first + k // head_dim * stride)
        at = first + np.arange(k) // head_dim * stride + np.arange(k) % head_dim
        opened = 1 / (1 + np.exp(-held[at].astype(np.float64)))
        factors = opened * held[at] if activation == "silu" else opened
        gates = HeadGates(self.bench.upload(held), activation, stride, first)
        return gates, factors.astype(np.float32)

    def gated(self, k: int, matrices: list[Matrix], *, head_dim: int, blocks: int) -> Source:
        """Return heads before their norm and SiLU gates, with sums of squares in blocks."""
        gates, factors = self.gates(k, head_dim, "silu")
        x, gain = normal(self.rng, k // head_dim, head_dim), normal(self.rng, head_dim)
        squares = (x.astype(np.float64) ** 2).reshape(len(x), blocks, -1).sum(2)
        squares = squares.astype(np.float32)

        def normed() -> F32:
            root = np.sqrt(squares.sum(1, dtype=np.float64) / head_dim + EPS)[:, None]
            return ((x / root * (0.5 + gain)).reshape(-1) * factors).astype(np.float32)

        # The sums stay as they are: they are operands of the launch, too.
        x *= self.away_from_ties(normed(), matrices).reshape(x.shape)
        upload = self.bench.upload
        before = GatedNorm(upload(squares), blocks, head_dim, upload(gain), EPS, gates, 0.5)
        return Source(Input(upload(x), before), normed())

    def branch(self, k: int, matrices: list[Matrix], form: BranchForm) -> tuple[Source, F64]:
        """Return a row and a branch before its norm, and their sum, f64 [K]."""
        x, branch, gains = normal(self.rng, k), normal(self.rng, k), normal(self.rng, 2, k)
        weight, number, offset = np.float32(0.7), 1.5, 0.25
        root = np.sqrt(np.mean(branch.astype(np.float64) ** 2) + EPS)
        added = branch / root * (offset + gains[0])
        scale = weight * number if form.is_scaled else 1.0
        gain = 1 + gains[1] if form.has_norm else np.float32(1)

        def summed() -> F64:
            return (x.astype(np.float64) + added) * scale

        factors = self.away_from_ties((summed() * gain).astype(np.float32), matrices)
        x = (summed() * factors / scale - added).astype(np.float32)
        parts = [gains[0], *([gains[1]] if form.has_norm else [])]
        if form.is_scaled:
            parts.append(np.array([weight, 0, 0, 0], np.float32))
        upload = self.bench.upload
        before = RowNorm(upload(gains[1]), EPS, 1.0) if form.has_norm else None
        normed = AddedBranch(
            upload(branch),
            BranchNorm(
                upload(np.concatenate(parts)), EPS, offset, number if form.is_scaled else None
            ),
            stream=self.bench.poisoned(k) if form.is_stored else None,
        )
        operand = Input(upload(x), before, added=normed)
        factor = 1 / np.sqrt(np.mean(summed() ** 2) + EPS) if form.has_norm else 1.0
        return Source(operand, (summed() * gain).astype(np.float32), factor), summed()

    def layer_norm(self, k: int, matrices: list[Matrix], *, is_bare: bool) -> Source:
        """Return a row before LayerNorm whose mean is large beside its deviation."""
        x = 30 + normal(self.rng, k)
        gain, bias = normal(self.rng, k), normal(self.rng, k)

        def normed() -> F32:
            exact = x.astype(np.float64)
            unit = (exact - exact.mean()) / np.sqrt(exact.var() + EPS)
            return (unit if is_bare else unit * (1 + gain) + bias).astype(np.float32)

        if not is_bare:  # the bias is free to move the codes
            bias += normed() * (self.away_from_ties(normed(), matrices) - 1)
        upload = self.bench.upload
        weights = (None, None) if is_bare else (upload(gain), upload(bias))
        return Source(Input(upload(x), RowLayerNorm(*weights, EPS, 1.0)), normed())

    def combined(
        self,
        k: int,
        matrices: list[Matrix],
        *,
        head_dim: int,
        splits: int,
        live: int,
        gates: tuple[HeadGates, F32] | None = None,
    ) -> Source:
        heads = k // head_dim
        parts = normal(self.rng, heads, splits, head_dim)
        stats = np.abs(normal(self.rng, heads, splits, 2)) + 0.1
        stats[:, live:] = (-3e38, 0.0)

        def joined() -> F32:
            most = stats[:, :live, 0].max(1, keepdims=True)
            fade = np.exp(stats[:, :live, 0].astype(np.float64) - most)
            mass = (fade * stats[:, :live, 1]).sum(1)
            whole = (parts[:, :live] * fade[..., None]).sum(1) / mass[:, None]
            opened = 1.0 if gates is None else gates[1]
            return (whole.reshape(-1) * opened).astype(np.float32)

        parts *= self.away_from_ties(joined(), matrices).reshape(heads, 1, head_dim)
        x = joined()
        parts[:, live:] = np.nan  # stale contents must not matter
        upload = self.bench.upload
        joins = AttentionSplits(upload(stats), splits, head_dim, gates and gates[0])
        return Source(Input(upload(parts), joins), x)

    def away_from_ties(self, x: F32, matrices: list[Matrix]) -> F32:
        """Return a factor for each input [K], 1 for most, after which no code is near a tie."""
        factors = np.ones_like(x)
        for _ in range(ROUNDS):
            near = _near_ties(x * factors, matrices)
            if not near.any():
                return factors
            factors[near] = self.rng.uniform(0.9, 1.1, near.sum())
        raise AssertionError(f"some codes were still near a tie after {ROUNDS} rounds of changes")


def _near_ties(x: F32, matrices: list[Matrix]) -> npt.NDArray[np.bool_]:
    near_a_half = np.zeros(len(x), np.bool_)
    for matrix in matrices:
        groups = np.abs(x.astype(np.float64) * matrix.scales).reshape(-1, len(x) // GROUP, GROUP)
        most = groups.max(axis=2, keepdims=True)
        codes = groups * (127 / np.where(most > 0, most, 1))
        near = np.abs(codes % 1 - 0.5) < NEAR_TIE
        near_a_half |= near.any(axis=0).reshape(-1)
    return near_a_half


def column_scales(name: str, raw: npt.NDArray[np.uint8], shape: tuple[int, int]) -> tuple[F32, F64]:
    """Return scales and offsets [N, K] of a column-major matrix.

    Offsets are the values that codes of zero decode to as they are stored, in blocks with a minimum
    the middle codes. Scales are the values that codes of one decode to if the minimums are zero.
    """
    fields, kind, (n, k) = BLOCK_FIELDS[name], DTYPES[name], shape
    zeros = raw.reshape(k, -1, kind.block_bytes).copy()
    for field in fields.codes:
        zeros[..., field.offset : field.offset + kind.block_elements // field.stack] = 0

    def decoded(blocks: npt.NDArray[np.uint8]) -> F32:
        return CODECS[name].dequantize(blocks.reshape(k, -1), n).T

    if fields.zero_point:  # signed codes: none is an offset, and the lowest is a power of two
        return decoded(zeros) / np.float32(-fields.zero_point), np.zeros(shape)
    ones, low = zeros.copy(), fields.codes[0]
    span = slice(low.offset, low.offset + kind.block_elements // low.stack)
    ones[..., span] = sum(1 << low.step * place for place in range(low.stack))
    if fields.minimum is not None:
        ones[..., fields.minimum : fields.minimum + 2] = 0
    scales = decoded(ones)
    middle = 0 if fields.minimum is None else 1 << fields.bits - 1
    return scales, decoded(zeros) + middle * scales.astype(np.float64)
