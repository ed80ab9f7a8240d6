"""Blocks stored by columns in the order that products with one row read: see turn_blocks.wgsl.

Done once, on the device, when a matrix is loaded. No code or factor changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rdrr_device.arena import Arena
from rdrr_device.kernels import Dispatch, dispatch, flat_grid
from rdrr_format.dtypes import DType
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.packing import GpuWeight, Part
from rdrr_runtime.phases.shaders import kernel

UNIT = 64
"""Codes of a row that are read together."""

_ROW = 256
"""Rows are padded with zeros to a multiple of it, so that staging never parts neighbours."""


@dataclass(frozen=True)
class TurnedType:
    """How a type's turned blocks lie.

    Attributes:
        unit_words: 32-bit words of 64 codes.
        group: Outputs that share their factors at one k.
        block: Outputs whose factors lie together.
        factor_words: 32-bit words of a block's factors at one k.
    """

    unit_words: int
    group: int
    block: int
    factor_words: int

    def row_words(self, k: int) -> int:
        """32-bit words of the codes of one output."""
        return turned_k(k) // UNIT * self.unit_words

    def code_words(self, n: int, k: int) -> int:
        """32-bit words of all codes; outputs fill whole blocks."""
        return -(-n // self.block) * self.block * self.row_words(k)

    def words(self, n: int, k: int) -> int:
        """32-bit words of a matrix [N, K]."""
        return self.code_words(n, k) + -(-n // self.block) * self.factor_words * turned_k(k)


TURNED_TYPES: Mapping[str, TurnedType] = MappingProxyType(
    {
        "Q4_K": TurnedType(unit_words=8, group=32, block=256, factor_words=6),
        "Q6_K": TurnedType(unit_words=12, group=16, block=256, factor_words=5),
        "Q8_0": TurnedType(unit_words=16, group=32, block=32, factor_words=1),
    }
)
"""The block types that can be turned."""


def turned_k(k: int) -> int:
    """Inputs of a turned row, its padding included."""
    return -(-k // _ROW) * _ROW


def factors_at(weight: GpuWeight) -> int:
    """Where a turned matrix's factors begin, in words of 16 bytes."""
    return TURNED_TYPES[weight.dtype.name].code_words(weight.n, weight.k) // 4


def shader_type(weight: GpuWeight) -> str:
    """What shaders that read a matrix by rows call how it lies."""
    return f"{'turned_' if weight.turned else ''}{weight.dtype.name.lower()}"


def turned_constants(weight: GpuWeight) -> dict[str, int]:
    """What shaders that read a turned matrix by rows are told of it."""
    return {"FACTORS": factors_at(weight), "K_TURNED": turned_k(weight.k)}


def allocate_turned(arena: Arena, dtype: DType, shape: tuple[int, int], label: str) -> GpuWeight:
    """Room for a turned matrix [N, K]; `turn` fills it.

    Raises:
        DeviceError: Out of memory.
    """
    n, k = shape
    kind = TURNED_TYPES[dtype.name]
    made = arena.empty(f"{label}.turned", 4 * kind.words(n, k))
    return GpuWeight(
        dtype, Layout.COLUMN, n, k, kind.row_words(k), (Part(made, 0, n),), turned=True
    )


def turn(stored: GpuWeight, turned: GpuWeight, label: str) -> Dispatch:
    """The launch that fills a turned matrix from the same one as it is stored, in one part."""
    name = turned.dtype.name
    kind = TURNED_TYPES[name]
    words = kind.words(turned.n, turned.k)
    what = kernel(
        "turn_blocks",
        variables={
            "WEIGHT": name.lower(),
            "UNIT_WORDS": kind.unit_words,
            "BLOCK": kind.block,
        },
        constants={
            "INPUTS": stored.k,
            "ROW_WORDS": stored.words_per_row,
            "K": turned_k(stored.k),
            "CODE_WORDS": kind.code_words(turned.n, turned.k),
            "WORDS": words,
        },
        variant=name.lower(),
    )
    buffers = {"stored": stored.parts[0].slice, "turned": turned.parts[0].slice}
    return dispatch(what, buffers, flat_grid(-(-words // 64)), f"{label}.turn")
