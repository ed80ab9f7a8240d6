"""Rows and columns that a storage type would lose although the rest of the model needs them.

A row of a matrix whose values are far below those of the other rows is lost where float16 holds the
values or the scales of blocks. This changes nothing if the row hardly counts, as in an embedding of
tokens that were never trained. It changes the result if something else is as large as the row is
small: a column of `down_proj` for a row of `up_proj`, a weight of a norm for a column behind it.
So a line is judged by its product with the lines of the same layer that multiply it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DType
from rdrr_format.layouts import Layout
from rdrr_manifests.graph.names import GATE_UP

from rdrr_converter.checkpoint.magnitudes import Magnitudes
from rdrr_converter.checkpoint.source import F32Array
from rdrr_converter.reading.matching import ModelTensor
from rdrr_converter.recipes import SCALE_PARTS, SMALLEST_SCALE

F64Array = npt.NDArray[np.float64]

_ROUNDING = SMALLEST_SCALE / 8
"""Error of a number in float16 that is below its normal numbers."""

_F16_ERROR, _BLOCK_ERROR = 2.0**-11, 2.0**-8
"""Relative errors that types have in any case: F16, and the finest of the block types."""

_MIXED = 2.0**-11
"""Part of the usual line that blocks keep of a line across them, whose scale is that of others."""

_MIXED_ERROR = 2.0**-3
"""Share of the usual line that may be lost there: blocks round small weights beside large ones in
any model."""

_DOWN, _QKV, _OUT = "down_proj", "qkv_proj", "o_proj"

_SCORES = {"q_proj", "k_proj"}
"""Projections whose rows multiply each other."""

_ATTENTION = (_SCORES, {"v_proj", _OUT}, {_QKV, _OUT})
"""Projections of attention whose lines face each other by heads, of which one may serve several."""


@dataclass(frozen=True)
class _Lines:
    """The lines of a matrix in one direction.

    Attributes:
        kind: `rows` or `columns`.
        largest: The largest absolute value of each.
        is_mixed: Whether a block holds weights of several of them.
    """

    kind: str
    largest: F32Array
    is_mixed: bool


@dataclass(frozen=True)
class LineCheck:
    """Finds the lines that types would lose.

    Attributes:
        magnitudes: Largest absolute values of the source tensors, by name.
        layers: The tensors of each layer; those outside the layers under None.
        head_dim: Number of values of an attention head.
    """

    magnitudes: Mapping[str, Magnitudes]
    layers: Mapping[int | None, Sequence[ModelTensor]]
    head_dim: int

    def find(self, tensor: ModelTensor, dtype: DType, layout: Layout) -> str | None:
        """Describe the rows or columns that a type would lose; return None if there are none.

        Args:
            tensor: A tensor of the model.
            dtype: The type in which it would be stored.
            layout: The layout in which it would be stored.
        """
        if dtype.name not in SCALE_PARTS or tensor.role == "bias":
            return None
        for lines in _lines(self.magnitudes[tensor.source.name], dtype, layout):
            lost = np.zeros(lines.largest.size, bool)
            for factors in self._factors(tensor, lines):
                lost |= _lost(lines, dtype, factors)
            if lost.any():
                largest = lines.largest[lost].max()
                count = f"{np.count_nonzero(lost):,} of {lost.size:,}"
                return f"{count} {lines.kind}, of at most {largest:.6g},"
        return None

    def _factors(self, tensor: ModelTensor, lines: _Lines) -> Iterator[F64Array]:
        """Yield what multiplies each line, for each tensor that may, over its mean."""
        for other in self.layers[tensor.layer]:
            if other is tensor or other.role == "bias" or _are_apart(tensor, other):
                continue
            for partner in _partners(tensor, lines.kind, other, self.magnitudes[other.source.name]):
                facing = self._align(partner, lines.largest.size, _part(tensor), _part(other))
                if facing is not None and facing.any():
                    yield facing / facing.mean(dtype=np.float64)

    def _align(self, partner: F32Array, size: int, name: str, other: str) -> F32Array | None:
        """Return the line of a partner that faces each line; None if it faces other lines."""
        if partner.size == size:
            return partner
        if {name, other} == {GATE_UP, _DOWN}:
            return np.tile(partner, 2) if size > partner.size else partner.reshape(2, -1).max(0)
        if (name, other) == (_QKV, _OUT):
            values = self._over_heads(partner, (size - partner.size) // 2)
            return None if values is None else np.pad(values, (size - values.size, 0))
        if (name, other) == (_OUT, _QKV):
            partner = partner[-((partner.size - size) // 2) :]
        return self._over_heads(partner, size) if {name, other} in _ATTENTION else None

    def _over_heads(self, partner: F32Array, size: int) -> F32Array | None:
        """Return lines for as many heads as `size` has, where a head may serve several."""
        small, large = sorted((partner.size, size))
        if small % self.head_dim or large % small:
            return None
        group = large // small
        if partner.size == large:
            return np.ravel(partner.reshape(-1, group, self.head_dim).max(axis=1))
        return np.ravel(np.repeat(partner.reshape(-1, self.head_dim), group, axis=0))


def _part(tensor: ModelTensor) -> str:
    return tensor.name.removesuffix(".weight").rpartition(".")[2]


def _lines(measured: Magnitudes, dtype: DType, layout: Layout) -> Iterator[_Lines]:
    """Yield the lines that differ in size."""
    across = "rows" if layout is Layout.COLUMN else "columns"
    for kind, largest in (("rows", measured.rows), ("columns", measured.columns)):
        if largest is not None:
            yield _Lines(kind, largest, dtype.is_block and kind == across)


def _lost(lines: _Lines, dtype: DType, factors: F64Array) -> npt.NDArray[np.bool_]:
    """Return which lines lose more, times their factors, than the type loses in any case."""
    largest = lines.largest.astype(np.float64)
    error = _ROUNDING * (SCALE_PARTS[dtype.name] if dtype.is_block else 1)
    allowed = _BLOCK_ERROR if dtype.is_block else _F16_ERROR
    small = SMALLEST_SCALE * SCALE_PARTS[dtype.name]
    if lines.is_mixed:
        error, allowed = max(error, float(largest.mean()) * _MIXED), _MIXED_ERROR
        small = 8 * error
    usual = float((largest * factors).mean())
    is_small = (largest > 0.0) & (largest < small)
    return is_small & (np.minimum(largest, error) * factors >= allowed * usual)


def _are_apart(tensor: ModelTensor, other: ModelTensor) -> bool:
    """Return whether two tensors belong to different experts."""
    return None not in (tensor.expert, other.expert) and tensor.expert != other.expert


def _partners(
    tensor: ModelTensor, kind: str, other: ModelTensor, measured: Magnitudes
) -> Iterator[F32Array]:
    """Yield the lines of another tensor that may multiply the lines of one kind."""
    if kind == "rows" and {_part(tensor), _part(other)} == _SCORES and measured.rows is not None:
        yield measured.rows
    facing = measured.columns if kind == "rows" or other.source.rows == 1 else measured.rows
    if facing is not None:
        yield facing
