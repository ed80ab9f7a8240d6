"""The table of storage types that a tensor can have: their names and block sizes.

Block types pack a fixed number of weights into a fixed number of bytes, with the sizes of ggml's
public block structures. Scalar types have one element per block. How weights are encoded is in
`rdrr_format.codecs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from rdrr_format.errors import FormatError

F16_OVERFLOW = 65520.0
"""The smallest value that rounds to infinity in float16."""


@dataclass(frozen=True)
class DType:
    """One storage type.

    Attributes:
        name: Canonical name, the key in `DTYPES`.
        block_elements: Weights per block (1 for scalar types).
        block_bytes: Bytes per block.
        manifest_name: Spelling that is written into manifests.
        aliases: Further spellings that are accepted.
        numpy: Little-endian NumPy type of a scalar type; None for block types. BF16, which NumPy
            lacks, is held in uint16.
        usual_error: Relative root-mean-square error of normally distributed weights. Rounding those
            of a real model costs about as much, and more where a few weights of a block are much
            larger than the others.
    """

    name: str
    block_elements: int
    block_bytes: int
    manifest_name: str
    aliases: tuple[str, ...] = ()
    numpy: str | None = None
    usual_error: float = 0.0

    @property
    def is_block(self) -> bool:
        """Whether several weights share a block."""
        return self.block_elements > 1

    def __str__(self) -> str:
        return self.name


_TABLE = (
    DType("F32", 1, 4, "F32", ("float32",), "<f4"),
    DType("F16", 1, 2, "F16", ("float16",), "<f2", usual_error=0.0002),
    DType("BF16", 1, 2, "BF16", ("bfloat16",), "<u2", usual_error=0.0017),
    DType("I64", 1, 8, "I64", ("int64",), "<i8"),
    DType("Q8_0", 32, 34, "Q8_0", usual_error=0.0054),
    DType("Q4_0", 32, 18, "Q4_0", usual_error=0.086),
    DType("Q4_1", 32, 20, "Q4_1", usual_error=0.078),
    DType("Q5_0", 32, 22, "Q5_0", usual_error=0.043),
    DType("Q5_1", 32, 24, "Q5_1", usual_error=0.038),
    DType("Q4_K", 256, 144, "Q4_K_M", ("q4k",), usual_error=0.071),
    DType("Q5_K", 256, 176, "Q5_K", usual_error=0.036),
    DType("Q6_K", 256, 210, "Q6_K", usual_error=0.018),
    DType("MXFP4", 32, 17, "MXFP4", usual_error=0.114),
)

DTYPES: Mapping[str, DType] = MappingProxyType({dtype.name: dtype for dtype in _TABLE})

_SPELLINGS: Mapping[str, DType] = MappingProxyType(
    {
        spelling.lower(): dtype
        for dtype in _TABLE
        for spelling in (dtype.name, dtype.manifest_name, *dtype.aliases)
    }
)

Quality = Literal["ref", "best"]

QUALITIES: tuple[Quality, ...] = get_args(Quality)
"""Ways to quantize: `ref` equals ggml bit for bit, `best` searches longer for less error."""


def parse_dtype(text: str) -> DType:
    """Return the type of a name, in any spelling of the table and in any case.

    Raises:
        FormatError: The name is not in the table.
    """
    dtype = _SPELLINGS.get(text.lower())
    if dtype is None:
        raise FormatError("unknown dtype", expected="one of " + ", ".join(DTYPES), found=text)
    return dtype
