"""How each storage type lies in GPU memory: one row of a table for each.

A quantized matrix [N, K] is repacked without loss into planes, one after the other in a buffer.
Its codes always run along K, in units of 64 codes of one output:

    low      4 bits of each code, 8 words a unit: byte i of word w of a half holds code 4 w + i of
             its 32 in the lower 4 bits and code 16 + 4 w + i in the upper; codes of 8 bits take
             16 words
    high     the bits above: 5-bit codes 2 words a unit, one for 32 codes, bit t of byte i being of
             code 4 t + i; 6-bit codes 4 words, one for 16 codes, bits 2 t and 2 t + 1 of byte i
    scales   of each group of 16 or 32 weights
    super_scales   with two levels, the factor of the scales of 256 weights

Signed codes are in two's complement, so a shader that moves them to the top of their bytes has
int8, 2^(8 - bits) times the code; the scales are divided by as much. A factor is one word: an f32,
or two f16 where there is a minimum too. With two levels a group's scale is a byte, and so is its
minimum.

    blocks along K (row, flat)      blocks along N (column)
    scales  of a unit: the bytes    of a group of outputs: for 4 k a word of scales, and one of
            of its groups, one      minimums; with one level a factor for each k
            word; with one level
            a factor a group
    super   of 4 units: a factor    of 256 outputs: an f32 for each k, then those of the minimums

All planes are addressed by the unit's number, row * units of a row + unit, or by the group's.

A new block type needs its row in `FORMATS` and its bytes in `rdrr_format.block_fields`. MXFP4 (an
e8m0 scale and 16 bytes of nibbles for 32 weights, the nibbles being fp4 numbers) would be
`GpuFormat(4, 32, codebook=(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, ...))` with an e8m0 encoding of the
scale beside f16 in the fields: twice an fp4 number is an integer, half of the scale makes up for
it, and an e8m0 scale is an f32 factor. IQ4_NL has the fields of Q4_0 and a codebook of 16 int8
values. A codebook maps nibbles to int8 where shaders take codes from a unit, in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

UNIT = 64
"""Codes of an output that lie together."""

HALF = 32
"""Weights that shaders dequantize at a time."""

SUPERBLOCK = 256
"""Weights that share the factor of their scales."""


@dataclass(frozen=True)
class PlaneOffsets:
    """Where shaders find what they read of a matrix; constants of `snippets/weights.wgsl`.

    Attributes:
        row_units: Units of a row.
        high: Where the plane begins, in words of 16 bytes, or None where there is none.
        scales: The same.
        super_scales: The same.
    """

    row_units: int
    high: int | None = None
    scales: int | None = None
    super_scales: int | None = None


@dataclass(frozen=True)
class GpuFormat:
    """How a matrix lies in GPU memory.

    Attributes:
        bits: Of a code, or of a single value.
        group: Weights that share a scale; 0 for single values.
        levels: 2 where the scales of groups are bytes with a super_scales factor.
        minimum: `subtracted` from the scaled code or `added` to it; empty where there is none.
        signed: Codes are in two's complement.
        column: Groups lie along N, and not along K.
        values: The type of single values; empty for codes.
    """

    bits: int
    group: int = 0
    levels: int = 1
    minimum: str = ""
    signed: bool = False
    column: bool = False
    values: str = ""

    @property
    def high(self) -> int:
        """Bits of a code beside the lower four."""
        return 0 if self.values else self.bits % 8 and self.bits - 4

    @property
    def factors(self) -> int:
        """1, or 2 with a minimum."""
        return 2 if self.minimum else 1

    @property
    def unit(self) -> int:
        """Weights of a unit: codes that lie together, or single values of 16 bytes."""
        return 128 // self.bits if self.values else UNIT

    @property
    def step(self) -> int:
        """Multiple of which the rows of a part begin, so that planes are cut at whole groups."""
        return SUPERBLOCK if self.column and self.levels == 2 else HALF

    def units(self, k: int, *, padded: int = 1) -> int:
        """Units of a row of `k` inputs, whose blocks hold `padded` weights."""
        if self.column or self.values:
            return -(-k // self.unit)
        return -(-(-(-k // padded) * padded) // self.unit)

    def plane_sizes(self, rows: int, units: int) -> tuple[int, int, int, int]:
        """Return the words of 16 bytes of the planes: low, high, scales, super_scales."""
        if self.values:
            return rows * units, 0, 0, 0
        every = rows * units
        if self.levels == 2 and not self.column:
            every = -(-every // 4) * 4  # whole blocks, also where they cross rows
        low = every * (4 if self.bits == 8 else 2)
        high = -(-every * self.high // 2)
        if self.column:
            groups, quads = -(-rows // self.group), units * UNIT // 4
            if self.levels == 1:
                return low, high, groups * quads, 0
            blocks = -(-rows // SUPERBLOCK)
            return low, high, groups * self.factors * quads // 4, blocks * self.factors * quads
        if self.levels == 1:
            return low, high, -(-every // 2), 0
        return low, high, -(-every // 4), -(-every // 16)

    def size(self, rows: int, units: int) -> int:
        """Return the bytes of some rows."""
        return 16 * sum(self.plane_sizes(rows, units))

    def plane_offsets(self, rows: int, units: int) -> PlaneOffsets:
        """Return where shaders find the planes of a matrix of some rows."""
        low, high, scales, _ = self.plane_sizes(rows, units)
        return PlaneOffsets(
            row_units=units,
            high=low if self.high else None,
            scales=None if self.values else low + high,
            super_scales=low + high + scales if self.levels == 2 else None,
        )


FORMATS: Mapping[str, GpuFormat] = MappingProxyType(
    {
        "F32": GpuFormat(32, values="f32"),
        "F16": GpuFormat(16, values="f16"),
        "BF16": GpuFormat(16, values="bf16"),
        "Q8_0": GpuFormat(8, 32, signed=True),
        "Q4_0": GpuFormat(4, 32, signed=True),
        "Q5_0": GpuFormat(5, 32, signed=True),
        "Q5_1": GpuFormat(5, 32, minimum="added"),
        "Q4_K": GpuFormat(4, 32, levels=2, minimum="subtracted"),
        "Q5_K": GpuFormat(5, 32, levels=2, minimum="subtracted"),
        "Q6_K": GpuFormat(6, 16, levels=2, signed=True),
    }
)
"""By the name of the storage type, its blocks along K."""


def format_of(name: str, *, column: bool = False) -> GpuFormat:
    """The format of a storage type that is in the table."""
    return replace(FORMATS[name], column=column) if column else FORMATS[name]
