"""Experts in MXFP4, whose blocks are kept.

blocks  U8 [experts, N, K / 32, 16], two 4-bit floats a byte: the even ones in the low halves
scales  U8 [experts, N, K / 32], exponents with a bias of 127

ggml's block holds the same numbers in another order: the exponent, then 16 bytes whose low halves
are the first 16 floats and whose high halves are the others. Each pair of tensors becomes one
tensor of such blocks, [experts, N, K], under the name of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.lazy_rows import LazyRows
from rdrr_converter.checkpoint.source import SourceTensor

METHOD = "mxfp4"
"""The value of `quant_method`."""

_BLOCKS, _SCALES = "_blocks", "_scales"
_MXFP4 = DTYPES["MXFP4"]
_Bytes = npt.NDArray[np.uint8]


def join_blocks(tensors: Mapping[str, SourceTensor]) -> dict[str, SourceTensor]:
    """Return the tensors with each pair of blocks and scales as one tensor of ggml's blocks.

    Raises:
        SourceError: A pair is incomplete, or its shapes do not belong together.
    """
    result: dict[str, SourceTensor] = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(_BLOCKS)
        if stem != name:
            result[name] = _joined(tensor, tensors.get(f"{stem}{_SCALES}"))
        elif not (name.endswith(_SCALES) and f"{name.removesuffix(_SCALES)}{_BLOCKS}" in tensors):
            result[name] = tensor
    return result


def _joined(blocks: SourceTensor, scales: SourceTensor | None) -> SourceTensor:
    *outer, groups, size = blocks.shape if len(blocks.shape) > 2 else (0, 0, 0)
    shape = (*outer, groups)
    if size != 16 or blocks.dtype != "U8" or scales is None or scales.shape != shape:
        raise SourceError(
            "blocks and scales of MXFP4 do not belong together",
            where=blocks.where,
            expected="bytes [..., 16], and a scale for each 16 of them",
            found=f"{list(blocks.shape)} and {None if scales is None else list(scales.shape)}",
        )
    stored = _Stored(blocks.native, scales.native, groups)
    return SourceTensor(
        blocks.name,
        (*outer, groups * _MXFP4.block_elements),
        _MXFP4.name,
        blocks.file,
        LazyRows(stored).opened,
    )


@dataclass(frozen=True)
class _Stored:
    """Blocks that are put in order, a part of the rows at a time.

    Attributes:
        blocks: Opens the stored nibbles, uint8 [rows * groups, 16].
        scales: Opens the stored exponents, uint8 [rows, groups].
        groups: Blocks of a row.
    """

    blocks: Callable[[], npt.NDArray[Any]]
    scales: Callable[[], npt.NDArray[Any]]
    groups: int

    def __call__(self, rows: slice) -> _Bytes:
        """Return the blocks of some rows, uint8 [rows, bytes of a row]."""
        scales = np.ascontiguousarray(self.scales()[rows])
        nibbles = self.blocks().reshape(-1, self.groups, 16)[rows]
        ordered = np.empty((*nibbles.shape[:2], _MXFP4.block_bytes), np.uint8)
        ordered[:, :, 0] = scales
        # Bytes 0 to 7 hold the first 16 floats, bytes 8 to 15 the others.
        first, last = nibbles[:, :, :8], nibbles[:, :, 8:]
        ordered[:, :, 1::2] = (first & 15) | (last << 4)
        ordered[:, :, 2::2] = (first >> 4) | (last & 0xF0)
        return ordered.reshape(len(ordered), -1)
