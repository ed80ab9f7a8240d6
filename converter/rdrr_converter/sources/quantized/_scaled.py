"""Decode 8-bit weights that keep their shape and have a scale per tile.

    weight      F8_E4M3, F8_E5M2 or I8 [N, K]
    scale       one number, one per row, or one per tile: [ceil(N / rows), ceil(K / columns)]
    zero point  optional, as many numbers as scales

A tile is the whole weight, a row, a part of a row, or a rectangular block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rdrr_converter.checkpoint.source import F32Array, SourceTensor
from rdrr_converter.sources.quantized._groups import Groups
from rdrr_converter.sources.quantized._scales import (
    FLOATS,
    Scales,
    float_table,
    scales_of,
    zeros_of,
)
from rdrr_converter.sources.quantized.exact import Symmetric, as_blocks
from rdrr_converter.sources.quantized.modules import Module

_ZERO = "weight_zero_point"
_NAMES: Mapping[str, str] = MappingProxyType(
    {"F8_E4M3": "fp8", "F8_E5M2": "fp8 (E5M2)", "I8": "int8"}
)


@dataclass(frozen=True)
class _Weight:
    """Decodes parts of one weight.

    Attributes:
        weight: The stored values.
        scales: Scales of the tiles.
        zeros: Zero points of the tiles, or None.
        rows: Rows per tile.
        groups: How columns are divided into tiles.
    """

    weight: SourceTensor
    scales: Scales
    zeros: Scales | None
    rows: int
    groups: Groups

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        first, end, _ = rows.indices(self.weight.rows)
        begin, stop, _ = columns.indices(self.weight.columns)
        stored = self.weight.stored(slice(first, end), slice(begin, stop))
        values = stored if self.weight.dtype == "I8" else float_table(self.weight.dtype)[stored]
        scales = self._expanded(self.scales, first, end, begin, stop)
        zeros = None
        if self.zeros is not None:
            zeros = self._expanded(self.zeros, first, end, begin, stop)
        return self.groups.scaled(values, begin, scales, zeros)

    def _expanded(self, numbers: Scales, first: int, end: int, begin: int, stop: int) -> F32Array:
        """Return the scales or zero points of some rows and columns, repeated for each row."""
        tiles = slice(first // self.rows, -(-end // self.rows))
        read = numbers.read(tiles, self.groups.window(begin, stop))
        spread: F32Array = read[np.arange(first, end) // self.rows - tiles.start]
        return spread


def decode_scaled(
    module: Module, scale_part: str, tiles: Iterable[tuple[int, int]]
) -> SourceTensor:
    """Return the weight of a module as a tensor that is decoded when read.

    Args:
        module: A module with a weight, scales and optional zero points.
        scale_part: Name of the scales.
        tiles: Rows and columns of the blocks and groups that the settings name.

    Raises:
        SourceError: The scales do not fit the weight.
    """
    weight = module.matrix("weight", (*FLOATS, "I8"))
    rows, columns = _tile(module, scale_part, weight, tiles)
    shape = (-(-weight.rows // rows), -(-weight.columns // columns))
    decode = _Weight(
        weight,
        scales_of(module, scale_part, shape),
        None if module.get(_ZERO) is None else zeros_of(module, _ZERO, shape),
        rows,
        Groups(shape[1], columns),
    )
    size = (weight.rows, weight.columns)
    tensor = module.decoded(size, _NAMES[weight.dtype], decode, weight.file)
    if weight.dtype != "I8" or rows != 1 or decode.zeros is not None:
        return tensor
    return as_blocks(tensor, Symmetric(8, decode.groups, decode.scales.read))


def _tile(
    module: Module, part: str, weight: SourceTensor, stated: Iterable[tuple[int, int]]
) -> tuple[int, int]:
    """Return the rows and columns of a tile."""
    outputs, inputs = weight.rows, weight.columns
    shape = module[part].shape
    if all(size == 1 for size in shape):
        return outputs, inputs
    if shape in ((outputs,), (outputs, 1)):
        return 1, inputs
    for rows, columns in stated:
        if shape == (-(-outputs // rows), -(-inputs // columns)):
            return rows, columns
    if len(shape) == 2 and shape[0] == outputs and shape[1] and inputs % shape[1] == 0:
        return 1, inputs // shape[1]
    expected = f"one scale, or {outputs} of them, or one per block or group of the settings"
    raise module.fault("does not fit the weight", part, expected, list(shape))
