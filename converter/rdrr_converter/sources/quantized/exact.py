"""Integers of symmetric groups as blocks that hold them exactly, so that a package can keep them.

    value = (code - 2^(bits - 1)) * scale

A block of Q4_0 or Q8_0 is that for 32 columns, with a scale in F16. Models that were trained for
such weights lose accuracy if they are quantized again, and so does every other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DTYPES, DType

from rdrr_converter.checkpoint.lazy_rows import LazyRows
from rdrr_converter.checkpoint.source import SCAN_ELEMENTS, F32Array, SourceTensor
from rdrr_converter.sources.quantized._groups import Groups

Numbers = Callable[[slice, slice], F32Array]
"""Function of rows and groups that reads scales or zero points, float32 [rows, groups]."""

_TYPES: Mapping[int, str] = MappingProxyType({4: "Q4_0", 8: "Q8_0"})
"""The block type for each width in bits."""


@dataclass(frozen=True)
class Symmetric:
    """What is known of a weight of integers.

    Attributes:
        bits: Width of the integers.
        groups: The columns that share a scale.
        scales: Reads scales.
        zeros: Reads the numbers that are subtracted from unsigned codes; None if that is always
            2^(bits - 1).
    """

    bits: int
    groups: Groups
    scales: Numbers
    zeros: Numbers | None = None


def as_blocks(tensor: SourceTensor, weight: Symmetric) -> SourceTensor:
    """Return a tensor as one of blocks, or unchanged if no type holds all its values.

    Scales and zero points are read whole, a part at a time.

    Args:
        tensor: The weight, which is decoded when it is read.
        weight: How it is stored.
    """
    dtype = DTYPES.get(_TYPES.get(weight.bits, ""))
    if dtype is None or tensor.decode is None or not _fits(tensor, weight, dtype):
        return tensor
    blocks = LazyRows(_Blocks(tensor, weight, dtype))
    return SourceTensor(tensor.name, tensor.shape, dtype.name, tensor.file, blocks.opened)


def _fits(tensor: SourceTensor, weight: Symmetric, dtype: DType) -> bool:
    groups = weight.groups
    lengths = (tensor.columns, groups.size)
    if groups.index is not None or any(length % dtype.block_elements for length in lengths):
        return False
    step = max(1, SCAN_ELEMENTS // groups.count)
    parts = [slice(at, min(at + step, tensor.rows)) for at in range(0, tensor.rows, step)]
    return all(_holds(weight, part) for part in parts)


def _holds(weight: Symmetric, rows: slice) -> bool:
    """Return whether some rows have scales that F16 holds, and no other zero point."""
    window = slice(0, weight.groups.count)
    scales = weight.scales(rows, window)
    with np.errstate(over="ignore"):
        if not np.array_equal(scales.astype(np.float16).astype(np.float32), scales):
            return False
    middle = np.float32(1 << (weight.bits - 1))
    return weight.zeros is None or bool((weight.zeros(rows, window) == middle).all())


@dataclass(frozen=True)
class _Blocks:
    """Makes the blocks of some rows.

    Attributes:
        tensor: The decoded tensor.
        weight: How it is stored.
        dtype: Type of the blocks.
    """

    tensor: SourceTensor
    weight: Symmetric
    dtype: DType

    def __call__(self, rows: slice) -> npt.NDArray[Any]:
        """Return the blocks of some rows, uint8 [rows, bytes of a row]."""
        first, end, _ = rows.indices(self.tensor.rows)
        size, count = self.dtype.block_elements, self.tensor.columns // self.dtype.block_elements
        scales = self.weight.scales(slice(first, end), slice(0, self.weight.groups.count))
        if len(scales) == 1:  # a scale of the whole tensor
            scales = np.repeat(scales, end - first, axis=0)
        scales = np.repeat(scales, self.weight.groups.size // size, axis=1)[:, :count]
        values = self.tensor.read(slice(first, end)).reshape(end - first, count, size)
        # A product of a scale and a small integer is exact in float32, and so is this quotient.
        divisor = np.where(scales == 0, np.float32(1), scales)[:, :, None]
        codes = np.rint(values / divisor).astype(np.int8)
        blocks = np.empty((end - first, count, self.dtype.block_bytes), np.uint8)
        blocks[:, :, :2] = scales.astype("<f2")[:, :, None].view(np.uint8)
        blocks[:, :, 2:] = _packed(codes, self.weight.bits)
        return blocks.reshape(end - first, -1)


def _packed(codes: npt.NDArray[np.int8], bits: int) -> npt.NDArray[np.uint8]:
    """Return codes [..., 32] as the bytes of a block: 4-bit ones in the order of ggml's Q4_0."""
    if bits == 8:
        return codes.view(np.uint8)
    unsigned = (codes + 8).astype(np.uint8)
    packed: npt.NDArray[np.uint8] = unsigned[..., :16] | np.left_shift(unsigned[..., 16:], 4)
    return packed
