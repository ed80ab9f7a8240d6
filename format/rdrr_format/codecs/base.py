"""The codec class: two pure array functions between float32 rows and stored rows.

What all codecs share is here: padding rows to a multiple of the block size, checking shapes and
values, and reshaping between rows and blocks. A codec's own module holds only its arithmetic. A
codec knows nothing of tensors, layouts (`rdrr_format.layouts`) or files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_format.dtypes import QUALITIES, DType
from rdrr_format.errors import FormatError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Takes rows [n, padded K] and the importance of each column [padded K] or None; returns blocks
# [n, row_bytes].
Quantizer = Callable[[Floats, Floats | None], Bytes]
# Takes the same rows, the weight of each column's error [padded K] and the quantizer's blocks;
# returns blocks [n, row_bytes] with less error.
Refiner = Callable[[Floats, Floats, Bytes], Bytes]
# Takes blocks [n, block_bytes]; returns weights [n, block_elements].
Dequantizer = Callable[[Bytes], Floats]
# Takes blocks [n, block_bytes] and codes [n, block_elements], uint8 from 0; returns the blocks with
# these codes and the scales that they had.
Recoder = Callable[[Bytes, Bytes], Bytes]

# Weights processed at a time. Smaller chunks are no faster on one core, and slower with many
# threads because every array operation releases and reacquires the GIL.
_CHUNK = 1 << 19

_MOST_RESIZED = 1.1
"""The largest factor by which `Codec.resize` makes a block larger or smaller."""


@dataclass(frozen=True)
class Codec:
    """The quantizer and the dequantizer of one storage type.

    Attributes:
        dtype: Name and sizes of the type.
        quantizer: Encodes rows whose length is a multiple of the block size.
        dequantizer: Decodes blocks.
        takes_importance: Whether importance weights change the result of the quantizer.
        refiner: Lowers the error of the quantizer's blocks, for the quality `best`; None for scalar
            types.
        levels: Number of codes of a weight, in which its value is linear; 0 if it is not.
        recoder: Exchanges the codes of blocks; None where `levels` is 0.
        scales: Offsets of the f16 numbers of a block, to which its values are proportional; none
            where `levels` is 0.
    """

    dtype: DType
    quantizer: Quantizer
    dequantizer: Dequantizer
    takes_importance: bool = False
    refiner: Refiner | None = None
    levels: int = 0
    recoder: Recoder | None = None
    scales: tuple[int, ...] = ()

    def row_bytes(self, elements: int) -> int:
        """Return the bytes of a stored row of `elements` weights."""
        return -(-elements // self.dtype.block_elements) * self.dtype.block_bytes

    def quantize(
        self,
        rows: npt.ArrayLike,
        importance: npt.ArrayLike | None = None,
        quality: str = "ref",
    ) -> Bytes:
        """Encode rows.

        Args:
            rows: float32 [n, K], padded with zeros if K is not a multiple of the block size.
            importance: float32 [K], how much the error of each column counts; or None. Under `ref`,
                types without a search (F32, F16, BF16, Q8_0) ignore it, as in ggml.
            quality: One of `QUALITIES`.

        Returns:
            uint8 [n, row_bytes].

        Raises:
            FormatError: `rows` is not a matrix, the quality is unknown, the importance has another
                length or negative or non-finite values, or the type cannot hold the weights (block
                types cannot hold NaN, infinity, or weights that need a scale beyond f16).
        """
        source = np.asarray(rows)
        if source.ndim != 2:
            raise FormatError(
                "rows to quantize must be a matrix", expected="shape [n, K]", found=source.shape
            )
        if quality not in QUALITIES:
            raise FormatError("unknown quality", expected=" or ".join(QUALITIES), found=quality)
        columns = self._importance(importance, source.shape[1])
        guide = columns if self.takes_importance else None
        refiner = self.refiner if quality == "best" else None
        out = np.empty((len(source), self.row_bytes(source.shape[1])), np.uint8)
        for part in self._chunks(source.shape):
            weights = self._padded(np.ascontiguousarray(source[part], dtype=np.float32))
            if self.dtype.is_block:
                self._check_finite(weights)
            out[part] = self.quantizer(weights, guide)
            if refiner is not None:
                out[part] = refiner(weights, self._weights_of(columns, source.shape[1]), out[part])
        return out

    def encode(
        self,
        rows: Floats,
        importance: npt.ArrayLike | None = None,
        quality: str = "ref",
    ) -> Bytes:
        """Encode rows as they are stored: `quantize`, and under `best` also `resize`."""
        stored = self.quantize(rows, importance, quality)
        return self.resize(stored, rows, importance) if quality == "best" else stored

    def dequantize(self, blocks: npt.ArrayLike, K: int) -> Floats:
        """Decode rows.

        Args:
            blocks: uint8 [n, row_bytes].
            K: Weights in a row; padding beyond them is dropped.

        Returns:
            float32 [n, K].

        Raises:
            FormatError: The blocks are not uint8, or their rows do not have the length for K
                weights.
        """
        stored = np.asarray(blocks)
        expected = self.row_bytes(K)
        if stored.dtype != np.uint8 or stored.ndim != 2 or stored.shape[1] != expected:
            raise FormatError(
                f"wrong shape or type of {self.dtype} rows",
                expected=f"uint8 [n, {expected}] for K = {K}",
                found=f"{stored.dtype} {list(stored.shape)}",
            )
        out = np.empty((len(stored), K), np.float32)
        for part in self._chunks(out.shape):
            raw = np.ascontiguousarray(stored[part])
            decoded = self.dequantizer(raw.reshape(-1, self.dtype.block_bytes))
            out[part] = decoded.reshape(len(raw), -1)[:, :K]
        return out

    def grid(self, stored: Bytes, K: int) -> tuple[Floats, Floats]:
        """Return what the codes of rows stand for, for types whose values are linear in them.

        Args:
            stored: uint8 [n, row_bytes].
            K: Weights in a row.

        Returns:
            The value of code 0 and the difference of two codes of each weight, float32 [n, K].
        """
        blocks = stored.size // self.dtype.block_bytes
        first, last = (
            self.dequantize(
                self._recoded(stored, np.full((blocks, self.dtype.block_elements), code, np.uint8)),
                K,
            )
            for code in (0, self.levels - 1)
        )
        return first, (last - first) / np.float32(self.levels - 1)

    def requantize(self, stored: Bytes, rows: Floats) -> Bytes:
        """Return stored rows with the same scales, and the codes that are nearest to `rows`.

        Args:
            stored: uint8 [n, row_bytes].
            rows: float32 [n, K].
        """
        weights = self._padded(rows)
        first, step = self.grid(stored, weights.shape[1])
        safe = np.where(step == 0, np.float32(1), step)
        with np.errstate(over="ignore"):
            codes = np.rint((weights - first) / safe)
        return self._recoded(stored, np.clip(codes, 0, self.levels - 1).astype(np.uint8))

    def resize(self, stored: Bytes, rows: Floats, importance: npt.ArrayLike | None = None) -> Bytes:
        """Return stored rows with the same codes, whose blocks are as large as their weights.

        A block of least squared error is smaller than its weights, because its error is orthogonal
        to it. That is little, but all blocks of a matrix are smaller, and so are its products. Here
        the product of each block with its weights becomes that of the weights with themselves.

        Args:
            stored: uint8 [n, row_bytes].
            rows: float32 [n, K], the weights.
            importance: float32 [K], how much each column counts; None if all count the same.
        """
        if not self.scales:
            return stored
        K = rows.shape[1]
        columns = self._weights_of(self._importance(importance, K), K)
        out = stored.copy()
        for part in self._chunks(rows.shape):
            weights = self._padded(np.ascontiguousarray(rows[part], dtype=np.float32))
            values = self._padded(self.dequantize(stored[part], K))
            guided = (weights * columns).reshape(-1, self.dtype.block_elements)
            square, product = (
                (guided * other.reshape(guided.shape)).sum(axis=1, dtype=np.float64)
                for other in (weights, values)
            )
            # Of blocks that have next to nothing in common with their weights nothing is known.
            known = (product > square / _MOST_RESIZED) & (product < square * _MOST_RESIZED)
            factors = np.where(known, square / np.where(known, product, 1), 1)
            out[part] = self._scaled(stored[part], factors.astype(np.float32))
        return out

    def _scaled(self, stored: Bytes, factors: Floats) -> Bytes:
        """Multiply the values of blocks by factors [blocks], where f16 holds the result."""
        blocks = stored.reshape(-1, self.dtype.block_bytes).copy()
        before = [f16_floats(blocks[:, at : at + 2]) for at in self.scales]
        with np.errstate(over="ignore"):
            after = [(scale * factors).astype("<f2") for scale in before]
        fits = np.all([np.isfinite(scale) for scale in after], axis=0)
        for at, scale in zip(self.scales, after, strict=True):
            blocks[fits, at : at + 2] = scale[fits].view(np.uint8).reshape(-1, 2)
        return blocks.reshape(stored.shape)

    def _recoded(self, stored: Bytes, codes: Bytes) -> Bytes:
        assert self.recoder is not None, "only for types whose values are linear in their codes"
        blocks = stored.reshape(-1, self.dtype.block_bytes)
        return self.recoder(blocks, codes.reshape(len(blocks), -1)).reshape(len(stored), -1)

    def _chunks(self, shape: tuple[int, ...]) -> list[slice]:
        rows, elements = shape
        if not elements:
            return []
        step = max(1, _CHUNK // elements)
        return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]

    def _check_finite(self, weights: Floats) -> None:
        # NaN and infinity show in the minimum or the maximum, which needs no mask in memory.
        if np.isfinite(weights.min()) and np.isfinite(weights.max()):
            return
        count = int(weights.size - np.count_nonzero(np.isfinite(weights)))
        raise FormatError(
            f"{self.dtype} cannot hold NaN or infinity",
            found=f"{count} such weights",
            hint="store the tensor in F32 or repair the checkpoint",
        )

    def _padded(self, weights: Floats) -> Floats:
        missing = -weights.shape[1] % self.dtype.block_elements
        return np.pad(weights, ((0, 0), (0, missing))) if missing else weights

    def _importance(self, values: npt.ArrayLike | None, K: int) -> Floats | None:
        if values is None or not self.dtype.is_block:
            return None
        columns = np.asarray(values, dtype=np.float32)
        if columns.shape != (K,):
            raise FormatError(
                "importance of another shape", expected=f"shape [{K}]", found=columns.shape
            )
        if not (np.isfinite(columns).all() and (columns >= 0).all()):
            raise FormatError("impossible importance", expected="finite values of zero or more")
        return self._zero_padded(columns)

    def _weights_of(self, columns: Floats | None, K: int) -> Floats:
        return self._zero_padded(np.ones(K, np.float32)) if columns is None else columns

    def _zero_padded(self, columns: Floats) -> Floats:
        # The error of padding does not count, because padding is dropped when rows are decoded.
        return np.pad(columns, (0, -len(columns) % self.dtype.block_elements))


def packed_codec(
    dtype: DType,
    head: int,
    quantize: Callable[[Floats, Floats | None], tuple[Bytes, Bytes]],
    refine: Callable[[Floats, Floats, Bytes], tuple[Bytes, Bytes]],
    pack: Callable[[Bytes], Bytes],
    dequantizer: Dequantizer,
    *,
    levels: int,
    scales: tuple[int, ...],
) -> Codec:
    """Return the codec of a type whose blocks are factors, followed by codes of all weights.

    Args:
        dtype: Name and sizes of the type.
        head: Bytes of the factors of a block.
        quantize: A `Quantizer` that returns factors [blocks, head] and codes apart.
        refine: A `Refiner` that takes factors and returns the same.
        pack: Packs the codes of blocks, in any shape, to bytes [blocks, block_bytes - head].
        dequantizer: See `Codec`, like the following.
        levels: Number of codes of a weight.
        scales: Offsets of the f16 numbers of a block.
    """

    def join(rows: int, factors: Bytes, codes: Bytes) -> Bytes:
        return np.concatenate([factors, pack(codes)], axis=1).reshape(rows, -1)

    def refiner(rows: Floats, columns: Floats, blocks: Bytes) -> Bytes:
        factors = blocks.reshape(-1, dtype.block_bytes)[:, :head]
        return join(len(rows), *refine(rows, columns, factors))

    return Codec(
        dtype,
        lambda rows, importance: join(len(rows), *quantize(rows, importance)),
        dequantizer,
        takes_importance=True,
        refiner=refiner,
        levels=levels,
        recoder=lambda blocks, codes: join(len(blocks), blocks[:, :head], codes),
        scales=scales,
    )


def f16_bytes(values: Floats, dtype: DType) -> Bytes:
    """Encode block scales [n] as little-endian f16 bytes [n, 2], rounded to nearest, ties to even.

    Raises:
        FormatError: A scale exceeds the range of f16, so the block would decode to infinity.
    """
    with np.errstate(over="ignore"):
        halves = np.ascontiguousarray(values).astype("<f2")
    if not np.isfinite(halves).all():
        raise FormatError(
            f"weights too large for {dtype}",
            expected="block scales of at most 65504",
            found=f"{np.abs(values).max():.6g}",
            hint="store the tensor in F32",
        )
    return halves.view(np.uint8).reshape(-1, 2)


def f16_floats(stored: npt.NDArray[Any]) -> Floats:
    """Decode f16 bytes [n, 2] to float32 [n]."""
    halves: Floats = np.ascontiguousarray(stored).view("<f2")[:, 0].astype(np.float32)
    return halves
