"""Decoders for block types of ggml that a package cannot store: their values are requantized.

Everything is little endian, with the lowest bits first. `d` and `m` are float16.

    IQ4_NL  32 weights: d, 16 bytes with two 4-bit indices of levels each.
            weight = d * level
    Q2_K    256 weights: 16 bytes with a 4-bit scale s and a 4-bit minimum t each, 64 bytes with
            four 2-bit codes q each, d, m.
            weight = d * s * q - m * t
    Q3_K    256 weights: 32 bytes with the third bits of eight codes q each, 64 bytes with the lower
            two bits of four codes each, 12 bytes with sixteen 6-bit scales s, d.
            weight = d * (s - 32) * (q - 4)
    IQ4_XS  256 weights: d, 2 bytes with the upper two bits of eight scales s, 4 bytes with their
            lower four bits, 128 bytes with two 4-bit indices of levels each.
            weight = d * (s - 32) * level

Where a byte holds two values, the low halves of 16 bytes are the first 16 of 32 values and the high
halves the others. Where a byte holds four, the lowest two bits of 32 bytes are the first 32 of 128
values, and so on. The IQ types with fewer bits need tables of thousands of entries and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_converter.checkpoint.source import F32Array, SourceTensor

_Bytes = npt.NDArray[np.uint8]

_LEVELS = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)
"""The 16 levels of IQ4, which lie closer together near zero, where most weights are."""


@dataclass(frozen=True)
class DecodeOnlyType:
    """A block type that can be decoded but not stored.

    Attributes:
        elements: Values per block.
        size: Bytes per block.
        decode: Decodes blocks, uint8 [blocks, size], to float32 [blocks, elements].
    """

    elements: int
    size: int
    decode: Callable[[_Bytes], F32Array]


@dataclass(frozen=True)
class BlockDecoder:
    """Decodes parts of a tensor of a decode-only type.

    Attributes:
        stored: The tensor with its blocks as bytes.
        kind: Type of the blocks.
    """

    stored: SourceTensor
    kind: DecodeOnlyType

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        """Decode these rows and columns, float32 [rows, columns]."""
        elements, size = self.kind.elements, self.kind.size
        begin, end, _ = columns.indices(self.stored.columns)
        first, last = begin // elements, -(-end // elements)
        raw = self.stored.stored(rows, slice(first * size, last * size))
        blocks = np.ascontiguousarray(raw).reshape(raw.shape[0] * (last - first), size)
        values = self.kind.decode(blocks).reshape(raw.shape[0], (last - first) * elements)
        start = first * elements
        part = values[:, begin - start : end - start]
        return part + np.float32(self.stored.offset) if self.stored.offset else part


def _float16(blocks: _Bytes, at: int) -> F32Array:
    """Return the float16 at byte `at` of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _halves(packed: _Bytes) -> _Bytes:
    """Unpack two values per byte: bytes [..., 16] to values [..., 32]."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _quarters(packed: _Bytes) -> _Bytes:
    """Unpack four values per byte: bytes [blocks, 64] to values [blocks, 16, 16]."""
    shifts = np.array((0, 2, 4, 6), np.uint8)[:, None]
    values = (packed.reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    return values.reshape(-1, 16, 16)


def _as_float32(codes: npt.NDArray[Any]) -> F32Array:
    return codes.astype(np.float32)


def _levels(codes: _Bytes) -> F32Array:
    values: F32Array = _LEVELS[codes]
    return values


def _iq4_nl(blocks: _Bytes) -> F32Array:
    return _levels(_halves(blocks[:, 2:])) * _float16(blocks, 0)


def _q2_k(blocks: _Bytes) -> F32Array:
    scales = _float16(blocks, 80) * _as_float32(blocks[:, :16] & 15)
    minima = _float16(blocks, 82) * _as_float32(blocks[:, :16] >> 4)
    values = scales[..., None] * _as_float32(_quarters(blocks[:, 16:80]))
    values -= minima[..., None]
    return values.reshape(-1, 256)


def _q3_k(blocks: _Bytes) -> F32Array:
    shifts = np.array((0, 2, 4, 6), np.uint8)[:, None]
    high = ((blocks[:, None, 104:108] >> shifts) & np.uint8(3)).reshape(-1, 16)
    low = np.concatenate((blocks[:, 96:104] & 15, blocks[:, 96:104] >> 4), axis=1)
    scales = _float16(blocks, 108) * (_as_float32(low | high << 4) - np.float32(32))
    third = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    codes = _quarters(blocks[:, 32:96]) | third.reshape(-1, 16, 16) << 2
    values = _as_float32(codes) - np.float32(4)
    values *= scales[..., None]
    return values.reshape(-1, 256)


def _iq4_xs(blocks: _Bytes) -> F32Array:
    low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=-1).reshape(-1, 8)
    upper = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high = (upper >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scales = _float16(blocks, 0) * (_as_float32(low | high << 4) - np.float32(32))
    levels = _levels(_halves(blocks[:, 8:].reshape(-1, 8, 16)))
    values = scales[..., None] * levels
    return values.reshape(-1, 256)


DECODE_ONLY_TYPES: Mapping[str, DecodeOnlyType] = MappingProxyType(
    {
        "IQ4_NL": DecodeOnlyType(32, 18, _iq4_nl),
        "Q2_K": DecodeOnlyType(256, 84, _q2_k),
        "Q3_K": DecodeOnlyType(256, 110, _q3_k),
        "IQ4_XS": DecodeOnlyType(256, 136, _iq4_xs),
    }
)
"""The types by ggml's names."""
