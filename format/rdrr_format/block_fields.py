"""The positions of codes and scales within the bytes of a block, as a table.

The codecs in `rdrr_format.codecs` have the same layout in their code. Readers that unpack blocks
elsewhere, such as shaders, are generated from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


@dataclass(frozen=True)
class CodeField:
    """A bit field that every code of a block has.

    The fields of `run` consecutive codes lie in consecutive bytes. `stack` such runs share the same
    bytes, each shifted by `step` bits from the one before.

    Attributes:
        offset: First byte in the block.
        bits: Width of the field in bits.
        run: Number of codes in consecutive bytes.
        stack: Number of runs that share the same bytes.
        step: Shift in bits from one of these runs to the next.
    """

    offset: int
    bits: int
    run: int
    stack: int = 1
    step: int = 0

    def byte(self, element: int) -> int:
        """Return the index of the byte in the block that holds the field of a code."""
        return self.offset + element // (self.run * self.stack) * self.run + element % self.run

    def shift(self, element: int) -> int:
        """Return the shift in bits of the field within its byte."""
        return element // self.run % self.stack * self.step


class GroupScaleEncoding(StrEnum):
    """Encodings of the scales of groups within a block.

    INT8 is a signed byte per group of 16 weights. K6 is 12 bytes with the 6-bit scales and minimums
    of eight groups of 32 weights, as in Q4_K and Q5_K.
    """

    INT8 = "int8"
    K6 = "k6"

    @property
    def largest(self) -> int:
        """The largest scale of a group."""
        return 127 if self is GroupScaleEncoding.INT8 else 63


@dataclass(frozen=True)
class GroupScales:
    """Scales of groups of weights within a block; each is multiplied by the block's own scale.

    Attributes:
        offset: First byte in the block.
        encoding: How the scales are stored.
    """

    offset: int
    encoding: GroupScaleEncoding


class ScaleEncoding(StrEnum):
    """Encodings of the scale of a block.

    F16 is a 16-bit float. E8M0 is a byte e that stands for 2^(e - 128).
    """

    F16 = "f16"
    E8M0 = "e8m0"


@dataclass(frozen=True)
class BlockFields:
    """The layout of a block.

    Attributes:
        codes: Bit fields of the codes, lowest bits first.
        scale: First byte of the block's scale.
        minimum: First byte of the f16 minimum, or of the scale of the groups' minimums; or None.
        groups: Scales of groups within the block, or None.
        zero_point: The code that stands for zero; 0 for signed codes.
        scale_encoding: How the block's scale is stored.
        values: The integer that each code stands for; empty if it is the code minus `zero_point`.
    """

    codes: tuple[CodeField, ...]
    scale: int
    minimum: int | None = None
    groups: GroupScales | None = None
    zero_point: int = 0
    scale_encoding: ScaleEncoding = ScaleEncoding.F16
    values: tuple[int, ...] = ()

    @property
    def bits(self) -> int:
        """Bits per code."""
        return sum(field.bits for field in self.codes)

    @property
    def f16_offsets(self) -> tuple[int, ...]:
        """First bytes of the factors of a block that are stored in f16."""
        if self.scale_encoding is not ScaleEncoding.F16:
            return ()
        return (self.scale,) if self.minimum is None else (self.scale, self.minimum)

    @property
    def largest(self) -> int:
        """The largest magnitude of a weight as a multiple of the block's scale."""
        if self.values:
            return max(map(abs, self.values))
        span = 1 << self.bits
        codes = self.zero_point or (span // 2 - 1 if self.minimum is None else span - 1)
        return codes * (self.groups.encoding.largest if self.groups else 1)


BLOCK_FIELDS: Mapping[str, BlockFields] = MappingProxyType(
    {
        "Q4_0": BlockFields((CodeField(2, 4, 16, 2, 4),), scale=0, zero_point=8),
        "Q4_1": BlockFields((CodeField(4, 4, 16, 2, 4),), scale=0, minimum=2),
        "Q5_0": BlockFields(
            (CodeField(6, 4, 16, 2, 4), CodeField(2, 1, 1, 8, 1)), scale=0, zero_point=16
        ),
        "Q5_1": BlockFields(
            (CodeField(8, 4, 16, 2, 4), CodeField(4, 1, 1, 8, 1)), scale=0, minimum=2
        ),
        "Q8_0": BlockFields((CodeField(2, 8, 32),), scale=0),
        "Q4_K": BlockFields(
            (CodeField(16, 4, 32, 2, 4),),
            scale=0,
            minimum=2,
            groups=GroupScales(4, GroupScaleEncoding.K6),
        ),
        "Q5_K": BlockFields(
            (CodeField(48, 4, 32, 2, 4), CodeField(16, 1, 32, 8, 1)),
            scale=0,
            minimum=2,
            groups=GroupScales(4, GroupScaleEncoding.K6),
        ),
        "Q6_K": BlockFields(
            (CodeField(0, 4, 64, 2, 4), CodeField(128, 2, 32, 4, 2)),
            scale=208,
            groups=GroupScales(192, GroupScaleEncoding.INT8),
            zero_point=32,
        ),
        "MXFP4": BlockFields(
            (CodeField(1, 4, 16, 2, 4),),
            scale=0,
            scale_encoding=ScaleEncoding.E8M0,
            values=(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
        ),
    }
)
"""Layouts by the name of the type in `rdrr_format.dtypes.DTYPES`."""
