"""Where the codes and scales of a block type lie in the bytes of a block, as data.

The codecs of `rdrr_format.codecs` know the same in arithmetic; a reader that unpacks blocks
elsewhere, such as a shader, takes it from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


@dataclass(frozen=True)
class CodeField:
    """Bits of every code of a block.

    Runs of `run` codes lie in neighbouring bytes; `stack` runs share the same bytes, each `step`
    bits above the one before.

    Attributes:
        offset: First byte in the block.
        bits: Width in bits.
        run: Codes in neighbouring bytes.
        stack: Runs that share the same bytes.
        step: Bits from one of them to the next.
    """

    offset: int
    bits: int
    run: int
    stack: int = 1
    step: int = 0

    def byte(self, element: int) -> int:
        """Byte of the block that holds these bits of a code."""
        return self.offset + element // (self.run * self.stack) * self.run + element % self.run

    def shift(self, element: int) -> int:
        """How far above the lowest bit of that byte they lie."""
        return element // self.run % self.stack * self.step


class GroupScaleEncoding(StrEnum):
    """How the scales of groups within a block are stored.

    INT8 is a signed byte for each group of 16; K6 is 12 bytes of six-bit scales and minimums of
    eight groups of 32, as Q4_K and Q5_K have them.
    """

    INT8 = "int8"
    K6 = "k6"


@dataclass(frozen=True)
class GroupScales:
    """Scales of groups of weights within a block, factors of the block's own scale.

    Attributes:
        offset: First byte in the block.
        encoding: How they are stored.
    """

    offset: int
    encoding: GroupScaleEncoding


@dataclass(frozen=True)
class BlockFields:
    """The parts of a block.

    Attributes:
        codes: Bits of the codes, lowest first.
        scale: Byte of the f16 scale of the block.
        minimum: Byte of the f16 minimum (or of the scale of the minimums), or None.
        groups: Scales of groups within the block, or None.
        zero_point: The code of zero; 0 also where codes are signed bytes.
    """

    codes: tuple[CodeField, ...]
    scale: int
    minimum: int | None = None
    groups: GroupScales | None = None
    zero_point: int = 0

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return sum(field.bits for field in self.codes)


BLOCK_FIELDS: Mapping[str, BlockFields] = MappingProxyType(
    {
        "Q4_0": BlockFields((CodeField(2, 4, 16, 2, 4),), scale=0, zero_point=8),
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
    }
)
"""By the name of the type in `rdrr_format.dtypes.DTYPES`."""
