"""Read scales and zero points of a weight, only the parts that are needed; decode 8-bit floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np

from rdrr_converter.checkpoint.source import SCALARS, F32Array, SourceTensor
from rdrr_converter.sources.quantized.modules import Module

FLOATS: Mapping[str, tuple[int, int]] = MappingProxyType({"F8_E4M3": (4, 3), "F8_E5M2": (5, 2)})
"""Bits of exponent and mantissa, by dtype."""

_EXPONENT = "F8_E8M0"
"""An 8-bit exponent without a mantissa, the type of some scales."""


@cache
def float_table(dtype: str) -> F32Array:
    """Return the values of all 256 codes of an 8-bit float, float32 [256].

    E4M3 has no infinities, and of each sign only the code of all ones is NaN. E5M2 has infinities
    and NaN as in IEEE 754.
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
    """Scales or zero points of the tiles of a weight, as a matrix.

    Attributes:
        tensor: The stored numbers.
        shape: Number of tiles along the rows and along the columns.
    """

    tensor: SourceTensor
    shape: tuple[int, int]

    def read(self, rows: slice, columns: slice) -> F32Array:
        """Return the numbers of some tiles, float32 [rows, columns]."""
        if self.tensor.shape == self.shape:
            return _values(self.tensor, rows, columns)
        whole = _values(self.tensor, slice(None), slice(None)).reshape(self.shape)
        part: F32Array = whole[rows, columns]
        return part


def scales_of(module: Module, part: str, shape: tuple[int, int]) -> Scales:
    """Return the scales of a module.

    Raises:
        SourceError: The scales have an unknown type, or their number does not match `shape`.
    """
    return _numbers(module, part, shape, (*SCALARS, _EXPONENT))


def zeros_of(module: Module, part: str, shape: tuple[int, int]) -> Scales:
    """Return the zero points of a module, if they are not packed.

    Raises:
        SourceError: They have an unknown type, or their number does not match `shape`.
    """
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
