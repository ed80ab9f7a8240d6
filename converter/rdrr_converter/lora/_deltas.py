"""Tensors of a base to which an adapter's change is added when they are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import SCAN_ELEMENTS, Decode, F32Array, SourceTensor

NOTE = "LoRA merged"

MISFIT = "the adapter does not fit the checkpoint"


@dataclass(frozen=True)
class LowRankUpdate:
    """A reader of base + scale * left @ right.

    Attributes:
        base: The tensor of the base.
        left: `lora_B` [outputs, rank]; for an embedding `lora_embedding_A` [rank, vocabulary].
        right: `lora_A` [rank, inputs]; for an embedding `lora_embedding_B` [hidden size, rank].
        scale: Factor on the product.
        transposed: Whether both factors are stored transposed, as for an embedding.
    """

    base: SourceTensor
    left: SourceTensor
    right: SourceTensor
    scale: float
    transposed: bool

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        from rdrr_converter.lora._product import add_product

        if self.transposed:
            left, right = self.left.read(columns=rows).T, self.right.read(rows=columns).T
        else:
            left, right = self.left.read(rows=rows), self.right.read(columns=columns)
        merged = np.array(self.base.read(rows, columns), np.float32, order="C")
        pair = (np.ascontiguousarray(left), np.ascontiguousarray(right))
        add_product(merged, *pair, np.float32(self.scale))
        return merged


@dataclass(frozen=True)
class DoraWeight:
    """A reader of a merged weight whose rows are scaled to stated norms (DoRA).

    Attributes:
        merged: Reader of the merged weight before it is scaled.
        shape: Its shape [rows, columns].
        magnitudes: The norms [rows] that the adapter states.
    """

    merged: Decode
    shape: tuple[int, int]
    magnitudes: SourceTensor

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        factors = self._factors[rows, None]
        return self.merged(rows, columns) * factors

    @cached_property
    def _factors(self) -> F32Array:
        """Stated norm divided by present norm of each row, float32 [rows]; 0 for a row of zeros."""
        step = max(1, SCAN_ELEMENTS // self.shape[1])
        starts = range(0, self.shape[0], step)
        norms = np.concatenate([self._row_norms(slice(at, at + step)) for at in starts])
        stated = self.magnitudes.read().reshape(-1)
        factors = np.divide(stated, norms, out=np.zeros_like(norms), where=norms > 0)
        return np.asarray(factors, np.float32)

    def _row_norms(self, rows: slice) -> npt.NDArray[np.float64]:
        squares = np.square(self.merged(rows, slice(None)), dtype=np.float64)
        return np.asarray(np.sqrt(squares.sum(axis=1)))


@dataclass(frozen=True)
class ScaledSum:
    """A reader of base + scale * addend, for two tensors of the same shape."""

    base: SourceTensor
    addend: SourceTensor
    scale: float

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        added = np.float32(self.scale) * self.addend.read(rows, columns)
        return self.base.read(rows, columns) + added


def merged_weight(
    base: SourceTensor,
    left: SourceTensor,
    right: SourceTensor,
    scale: float,
    *,
    transposed: bool = False,
    magnitudes: SourceTensor | None = None,
) -> SourceTensor:
    """Return a weight with a LoRA product merged into it.

    Args:
        base: The weight of the base.
        left: Left factor (see `LowRankUpdate`).
        right: Right factor.
        scale: Factor on the product.
        transposed: Whether both factors are stored transposed.
        magnitudes: Norms of the rows with DoRA.

    Raises:
        SourceError: The shapes of the matrices do not match the weight.
    """
    outputs, inputs = left.shape[int(transposed)], right.shape[int(not transposed)]
    if (outputs, inputs) != base.shape:
        raise SourceError(
            MISFIT,
            where=left.where,
            expected=f"a product of shape {list(base.shape)}, as {base.name} has",
            found=f"{list(left.shape)} and {list(right.shape)}",
        )
    decode: Decode = LowRankUpdate(base, left, right, scale, transposed)
    if magnitudes is not None:
        magnitudes.need_shape((outputs,), MISFIT, None)
        decode = DoraWeight(decode, (outputs, inputs), magnitudes)
    return _with_values(base, decode)


def merged_bias(base: SourceTensor, addend: SourceTensor, scale: float) -> SourceTensor:
    """Return a bias with scale * addend added.

    Raises:
        SourceError: The shapes differ.
    """
    addend.need_shape(base.shape, MISFIT, None)
    return _with_values(base, ScaledSum(base, addend, scale))


def _with_values(base: SourceTensor, decode: Decode) -> SourceTensor:
    """Return the base's tensor with other values, but with its storage type for the notes."""
    return replace(base, interleaved=0, offset=0.0, decode=decode, note=NOTE)
