"""What a codec is: two pure array functions between float32 rows and stored rows.

Padding to whole blocks, checks of shapes and values, and the reshaping between rows and blocks
live here once, so that a codec's own file holds nothing but its arithmetic. A codec knows
nothing of tensors, layouts (`rdrr_format.layouts`) or files.
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

# Rows [n, padded K], and the importance of each column [padded K] if any, to [n, row_bytes].
Quantizer = Callable[[Floats, Floats | None], Bytes]
# The same rows, the weight of each column's error [padded K], and the quantizer's blocks, to blocks
# [n, row_bytes] with less error.
Refiner = Callable[[Floats, Floats, Bytes], Bytes]
# Blocks [n, block_bytes] to weights [n, block_elements].
Dequantizer = Callable[[Bytes], Floats]

# Weights worked on at once. Smaller pieces are no faster on one core, and with many threads they
# are slower: each operation on arrays hands the interpreter's lock to another.
_CHUNK = 1 << 19


@dataclass(frozen=True)
class Codec:
    """One storage type's arithmetic.

    Attributes:
        dtype: Sizes and name of the type.
        quantizer: Rows padded to whole blocks to bytes.
        dequantizer: Blocks to weights.
        takes_importance: Whether importance weights change the result of the quantizer.
        refiner: What lowers the error of the quantizer's blocks; None for scalars.
    """

    dtype: DType
    quantizer: Quantizer
    dequantizer: Dequantizer
    takes_importance: bool = False
    refiner: Refiner | None = None

    def row_bytes(self, elements: int) -> int:
        """Bytes of a stored row of that many weights."""
        return -(-elements // self.dtype.block_elements) * self.dtype.block_bytes

    def quantize(
        self,
        rows: npt.ArrayLike,
        importance: npt.ArrayLike | None = None,
        quality: str = "ref",
    ) -> Bytes:
        """Encode rows.

        Args:
            rows: float32 [n, K]. K that is not a multiple of the block is padded with zeros.
            importance: float32 [K], how much each column's error weighs; None for none. Types
                without a search (F32, F16, BF16, Q8_0) ignore it under `ref`, as ggml does.
            quality: One of `QUALITIES`.

        Returns:
            uint8 [n, row_bytes].

        Raises:
            FormatError: Not a matrix, no such quality, importance of another length or with
                negative or non-finite values, or weights that the type cannot hold (NaN,
                infinity and scales beyond f16 in block types).
        """
        source = np.asarray(rows)
        if source.ndim != 2:
            raise FormatError("rows to quantize", expected="shape [n, K]", found=source.shape)
        if quality not in QUALITIES:
            raise FormatError("quality", expected=" or ".join(QUALITIES), found=quality)
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

    def dequantize(self, blocks: npt.ArrayLike, K: int) -> Floats:
        """Decode rows.

        Args:
            blocks: uint8 [n, row_bytes].
            K: Weights in a row that carry meaning; what the padding holds is dropped.

        Returns:
            float32 [n, K].

        Raises:
            FormatError: Not uint8, or rows of another length than K weights take.
        """
        stored = np.asarray(blocks)
        expected = self.row_bytes(K)
        if stored.dtype != np.uint8 or stored.ndim != 2 or stored.shape[1] != expected:
            raise FormatError(
                f"{self.dtype} rows",
                expected=f"uint8 [n, {expected}] for K = {K}",
                found=f"{stored.dtype} {list(stored.shape)}",
            )
        out = np.empty((len(stored), K), np.float32)
        for part in self._chunks(out.shape):
            raw = np.ascontiguousarray(stored[part])
            decoded = self.dequantizer(raw.reshape(-1, self.dtype.block_bytes))
            out[part] = decoded.reshape(len(raw), -1)[:, :K]
        return out

    def _chunks(self, shape: tuple[int, ...]) -> list[slice]:
        rows, elements = shape
        if not elements:
            return []
        step = max(1, _CHUNK // elements)
        return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]

    def _check_finite(self, weights: Floats) -> None:
        # NaN and infinity survive in the extremes, which need no mask in memory.
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
            raise FormatError("importance", expected=f"shape [{K}]", found=columns.shape)
        if not (np.isfinite(columns).all() and (columns >= 0).all()):
            raise FormatError("importance", expected="finite values of zero or more")
        return self._zero_padded(columns)

    def _weights_of(self, columns: Floats | None, K: int) -> Floats:
        return self._zero_padded(np.ones(K, np.float32)) if columns is None else columns

    def _zero_padded(self, columns: Floats) -> Floats:
        # Padding has no importance: its error is never seen.
        return np.pad(columns, (0, -len(columns) % self.dtype.block_elements))


def f16_bytes(values: Floats, dtype: DType) -> Bytes:
    """Block scales [n] as little-endian f16 bytes [n, 2], rounded to nearest even.

    Raises:
        FormatError: A scale is beyond f16: the block would decode to infinity.
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
    """F16 bytes [n, 2] as float32 [n]."""
    halves: Floats = np.ascontiguousarray(stored).view("<f2")[:, 0].astype(np.float32)
    return halves
