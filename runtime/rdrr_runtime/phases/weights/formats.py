"""The GPU memory layout of each storage type: the table `FORMATS`, which follows from the blocks.

A quantized matrix [N, K] is repacked without loss into planes, one after the other in a buffer.
Its codes always run along K, in units of 64 codes of one output (matrix row). A half is half a
unit, 32 codes. The planes are:

    low      the lower 4 bits of each code, 8 words a unit: byte i of word w of a half holds code
             4 w + i of its 32 codes in the lower 4 bits and code 16 + 4 w + i in the upper 4 bits;
             8-bit codes take 16 words a unit
    high     the bits above: for 5-bit codes 2 words a unit, one for each 32 codes, where bit t of
             byte i belongs to code 4 t + i; for 6-bit codes 4 words a unit, one for each 16 codes,
             where bits 2 t and 2 t + 1 of byte i belong to code 4 t + i
    scales   the scale of each group of 16 or 32 weights
    super    only with two levels of scales: the super-block scale, a factor on the scales (and
             another on the minimums) of 256 weights

Codes of blocks along N with a minimum are stored as signed ones: the middle code is subtracted, and
its product with the scale is added to the minimum when scales are read. The input is rounded to
int8 after it was multiplied by a scale, while the sum of the minimums is exact. So a rounding error
is multiplied by the stored code, and codes around zero are half as large as those from zero on.

Signed codes are in two's complement. A shader that shifts them to the top of their bytes gets int8
values that are 2^(8 - bits) times the code, so the stored scales are divided by that factor. A
factor is one word: an f32, or two f16 if there is a minimum too. With two levels the scale of a
group is one byte, and so is its minimum.

            blocks along K (row, flat)    blocks along N (column)
    scales  one level: a factor for       one level: for each group of outputs a factor for each k
            each group
            two levels: one word for      two levels: for each group of outputs and each 4 k a word
            each unit, the bytes of       of scales, followed by a word of minimums
            its groups
    super   a factor for each 4 units     for each 256 outputs an f32 for each k, followed by those
                                          of the minimums

Units are numbered row by row, row * (units of a row) + unit, and so are super-blocks along K. A
format may have the units first instead: then the number of a unit is unit * rows + row, that of a
super-block unit / 4 * rows + row, with the rows of the part, so that the codes which many outputs
have for the same 64 inputs lie side by side. The planes of scales along N are the same in both.

Codes that are 4-bit floats (MXFP4) are kept as stored. The one place where shaders extract the
codes of a unit, `snippets/codes.wgsl`, turns them into int8 integers of twice the value, and the
stored scales are those for such integers.

A new block type needs its byte offsets in `rdrr_format.block_fields`. IQ4_NL would have the fields
of Q4_0 and a table of 16 int8 values in that place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from rdrr_format.block_fields import BLOCK_FIELDS, BlockFields, GroupScaleEncoding
from rdrr_format.dtypes import DTYPES

UNIT = 64
"""Codes of one output that are stored together."""

HALF = 32
"""Weights that a shader dequantizes at a time: half a unit."""

SUPERBLOCK = 256
"""Weights of a super-block, which share a super-block scale."""


@dataclass(frozen=True)
class PlaneOffsets:
    """Where the planes of a matrix begin; override constants of `snippets/weights.wgsl`.

    Offsets are in words of 16 bytes from the start of the buffer, or None for a plane that the
    format does not have.

    Attributes:
        row_units: Units of a row.
        part_rows: Rows of the part, or None if the units of a row lie side by side.
        high: Offset of the high bits of the codes.
        scales: Offset of the scales.
        super_scales: Offset of the super-block scales.
    """

    row_units: int
    part_rows: int | None = None
    high: int | None = None
    scales: int | None = None
    super_scales: int | None = None


@dataclass(frozen=True)
class GpuFormat:
    """The memory layout of a matrix on the GPU.

    Attributes:
        bits: Bits of a code, or of an unquantized value.
        group: Weights that share a scale; 0 for unquantized values.
        levels: 1, or 2 if the scales of groups are bytes with a super-block scale.
        minimum: Whether the minimum is `subtracted` from the scaled code or `added` to it; empty
            for formats without a minimum.
        signed: Whether codes are stored signed, in two's complement unless they are floats; those
            of blocks along N always are.
        floats: Whether codes are 4-bit floats (a sign, two exponent bits and one mantissa bit).
        column: Whether groups lie along N instead of along K.
        values: Type of unquantized values, `f32`, `f16` or `bf16`; empty for quantized formats.
        units_first: Whether the units that the rows of a part have for the same inputs lie side by
            side, instead of the units of a row.
    """

    bits: int
    group: int = 0
    levels: int = 1
    minimum: str = ""
    signed: bool = False
    floats: bool = False
    column: bool = False
    values: str = ""
    units_first: bool = False

    @property
    def along_outputs(self) -> GpuFormat:
        """The format of the same blocks with groups along N."""
        return self if self.values else replace(self, column=True, signed=True)

    @property
    def shift(self) -> int:
        """Bits by which shaders shift codes to the top of their bytes, so that they are int8."""
        return 8 - self.bits if self.signed and not self.floats else 0

    @property
    def high(self) -> int:
        """Bits of a code in the high plane: those above the lower four, 0 for 8-bit codes."""
        return 0 if self.values else self.bits % 8 and self.bits - 4

    @property
    def factors(self) -> int:
        """Factors of a group: its scale, and its minimum if the format has one."""
        return 2 if self.minimum else 1

    @property
    def unit(self) -> int:
        """Weights of a unit: 64 codes, or the unquantized values in 16 bytes."""
        return 128 // self.bits if self.values else UNIT

    @property
    def step(self) -> int:
        """Rows to whose multiple a part is aligned, so that no group is split between parts."""
        return SUPERBLOCK if self.column and self.levels == 2 else HALF

    def units(self, k: int, *, padded: int = 1) -> int:
        """Return the units of a row of `k` inputs, padded to whole blocks of `padded` weights."""
        if self.column or self.values:
            return -(-k // self.unit)
        return -(-(-(-k // padded) * padded) // self.unit)

    def with_units_first(self, units: int) -> GpuFormat:
        """Return the format with the units first, or unchanged if rows of `units` cannot have it.

        They cannot if their values are unquantized, or if super-blocks along K cross them.
        """
        crossed = self.levels == 2 and not self.column and units % 4 != 0
        return self if self.values or crossed else replace(self, units_first=True)

    def plane_sizes(self, rows: int, units: int) -> tuple[int, int, int, int]:
        """Return the sizes of the planes of `rows` rows, in words of 16 bytes.

        Returns:
            Sizes of the planes low, high, scales and super, in this order; 0 for a missing plane.
        """
        if self.values:
            return rows * units, 0, 0, 0
        every = rows * units
        if self.levels == 2 and not self.column:
            every = -(-every // 4) * 4  # whole super-blocks, even if they cross rows
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
        """Return the bytes of `rows` rows of `units` units."""
        return 16 * sum(self.plane_sizes(rows, units))

    def plane_offsets(self, rows: int, units: int) -> PlaneOffsets:
        """Return where the planes of a matrix of `rows` rows begin."""
        low, high, scales, _ = self.plane_sizes(rows, units)
        return PlaneOffsets(
            row_units=units,
            part_rows=rows if self.units_first else None,
            high=low if self.high else None,
            scales=None if self.values else low + high,
            super_scales=low + high + scales if self.levels == 2 else None,
        )


def _of_blocks(fields: BlockFields) -> GpuFormat:
    """Return the memory layout of the blocks of a type."""
    two_levels, groups = fields.groups is not None, fields.groups
    has_small_groups = groups is not None and groups.encoding is GroupScaleEncoding.INT8
    kind = "subtracted" if two_levels else "added"
    return GpuFormat(
        fields.bits,
        16 if has_small_groups else HALF,
        levels=2 if two_levels else 1,
        minimum="" if fields.minimum is None else kind,
        signed=fields.minimum is None,
        floats=bool(fields.values),
    )


FORMATS: Mapping[str, GpuFormat] = MappingProxyType(
    {
        "F32": GpuFormat(32, values="f32"),
        "F16": GpuFormat(16, values="f16"),
        "BF16": GpuFormat(16, values="bf16"),
        **{name: _of_blocks(BLOCK_FIELDS[name]) for name in DTYPES if name in BLOCK_FIELDS},
    }
)
"""Memory layout by the name of the storage type, with blocks along K."""


def format_of(name: str, *, column: bool = False, units_first: bool = False) -> GpuFormat:
    """Return the memory layout of a storage type in `FORMATS`, with blocks along N if `column`."""
    form = FORMATS[name].along_outputs if column else FORMATS[name]
    return replace(form, units_first=True) if units_first else form
