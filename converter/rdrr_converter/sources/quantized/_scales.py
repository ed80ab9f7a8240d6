"""Scales and zero points of a weight, read in the parts that a chunk needs; eight-bit floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np

from rdrr_converter.sources.base import SCALARS, F32Array, SourceTensor
from rdrr_converter.sources.quantized.modules import Module

FLOATS: Mapping[str, tuple[int, int]] = MappingProxyType({"F8_E4M3": (4, 3), "F8_E5M2": (5, 2)})
"""Bits of exponent and mantissa."""

_EXPONENT = "F8_E8M0"
"""A power of two alone, which some scales are."""


@cache
def float_table(dtype: str) -> F32Array:
    """What each of the 256 codes of an eight-bit float means.

    E4M3 has no infinities: only the code of all ones is no number. E5M2 is as IEEE 754 would
    have it.
    """
    codes = np.arange(256)
    if dtype == _EXPONENT:
        values = np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127))
        return np.asarray(values, np.float32)
    exponent_bits, mantissa_bits = FLOATS[dtype]
    mantissa, exponent = codes % (1 << mantissa_bits), codes % 128 >> mantissa_bits
    bias = (1 << (exponent_bits - 1)) - 1
    leading = np.where(exponent > 0, 1 << mantissa_bits, 0)
    values = np.ldexp(1.0 * (leading + mantissa), np.maximum(exponent, 1) - bias - mantissa_bits)
    if dtype == "F8_E5M2":
        special = exponent == 31
        values[special] = np.where(mantissa[special] > 0, np.nan, np.inf)
    else:
        values[codes % 128 == 127] = np.nan
    return np.asarray(np.where(codes >= 128, -values, values), np.float32)


@dataclass(frozen=True)
class Scales:
    """Numbers of a weight's tiles, as a matrix.

    Attributes:
        tensor: Where they are stored.
        shape: Tiles of rows, and tiles of columns.
    """

    tensor: SourceTensor
    shape: tuple[int, int]

    def read(self, rows: slice, columns: slice) -> F32Array:
        """Some of them, float32."""
        if self.tensor.shape == self.shape:
            return _values(self.tensor, rows, columns)
        whole = _values(self.tensor, slice(None), slice(None)).reshape(self.shape)
        part: F32Array = whole[rows, columns]
        return part


def scales_of(module: Module, part: str, shape: tuple[int, int]) -> Scales:
    """The scales of a module.

    Raises:
        SourceError: They are not numbers of a known kind, or not as many as `shape` says.
    """
    return _numbers(module, part, shape, (*SCALARS, _EXPONENT))


def zeros_of(module: Module, part: str, shape: tuple[int, int]) -> Scales:
    """The unpacked zero points of a module, likewise."""
    return _numbers(module, part, shape, ("I8", *SCALARS, *FLOATS))


def _numbers(module: Module, part: str, shape: tuple[int, int], dtypes: tuple[str, ...]) -> Scales:
    tensor = module[part]
    if tensor.dtype not in dtypes or tensor.rows * tensor.columns != shape[0] * shape[1]:
        expected = f"{list(shape)} of {', '.join(dtypes)}"
        raise module.fault(
            "cannot be read", part, expected, f"{list(tensor.shape)} of {tensor.dtype}"
        )
    return Scales(tensor, shape)


def _values(tensor: SourceTensor, rows: slice, columns: slice) -> F32Array:
    if tensor.dtype in (*FLOATS, _EXPONENT):
        values: F32Array = float_table(tensor.dtype)[tensor.stored(rows, columns)]
        return values
    if tensor.dtype == "I8":
        return tensor.stored(rows, columns).astype(np.float32)
    return tensor.read(rows, columns)
