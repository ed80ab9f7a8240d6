"""Weights in GPU memory: the word-aligned form that the kernels read, and how they get there.

    type        a block on disk             in GPU memory
    Q4_K, Q5_K  144 B, 176 B                36 and 44 words, as they are
    Q6_K        210 B: ql qh scales d       54 words: ql qh scales as they are, d as f32, a zero
    Q8_0        34 B: d qs                  9 words: d as f32, then qs
    Q4_0        18 B: d qs                  5 words: d as f32, then qs
    Q5_0        22 B: d qh qs               6 words: d as f32, then qh and qs
    Q5_1        24 B: d m qh qs             6 words, as it is
    F16, BF16   2 B an element              rows padded with zeros to 16 bytes
    F32         4 B an element              rows padded with zeros to 16 bytes

Scales that would leave the rest of a block unaligned are widened, which also spares shaders their
decoding: WGSL may flush subnormal f16 values to zero, and block scales are often that small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DType
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Geometry, Layout, geometry

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class BlockForm:
    """A block in GPU memory.

    Attributes:
        words: 32-bit words of a block.
        scale: Where the stored block has the f16 scale that is widened to f32, or None.
    """

    words: int
    scale: slice | None = None


BLOCK_FORMS: Mapping[str, BlockForm] = MappingProxyType(
    {
        "Q4_K": BlockForm(36),
        "Q5_K": BlockForm(44),
        "Q6_K": BlockForm(54, slice(208, 210)),
        "Q8_0": BlockForm(9, slice(0, 2)),
        "Q4_0": BlockForm(5, slice(0, 2)),
        "Q5_0": BlockForm(6, slice(0, 2)),
        "Q5_1": BlockForm(6),
    }
)

FLAT_GRANULES: Mapping[str, int] = MappingProxyType({"Q4_K": 64, "Q5_K": 64, "Q6_K": 128})
"""Weights within a block that share no bytes with others but its scales; a row of a flat matrix may
begin after any such run, since 32 rows are whole blocks even then."""

GPU_DTYPES = (*BLOCK_FORMS, "F16", "BF16", "F32")
PART_ROWS = 32  # parts begin at multiples, so that inputs of a part can be read four at a time
_CHUNK_BYTES = 16 << 20  # host memory that packing may take at a time


@dataclass(frozen=True)
class Part:
    """A run of stored rows in one buffer."""

    slice: BufferSlice
    first_row: int
    rows: int


@dataclass(frozen=True)
class GpuWeight:
    """A matrix [N, K] in GPU memory.

    Attributes:
        dtype: Storage type.
        layout: `row` (N stored rows of K), `column` (K stored rows of N), or `flat`: N rows of K in
            blocks that run across them, each row a whole number of words.
        n: Outputs.
        k: Inputs.
        words_per_row: 32-bit words of a stored row.
        parts: Stored rows, split where a buffer would exceed the binding limit.
        note: Why it is not in the form the package stores it in; empty if it is.
        turned: A column matrix whose codes lie by rows, see `phases/turn_blocks.py`; its words per
            row are those of an output's codes.
        row_scales: f32 [N] of single values by row, see `phases/row_scales.py`, or None.
    """

    dtype: DType
    layout: Layout
    n: int
    k: int
    words_per_row: int
    parts: tuple[Part, ...]
    note: str = ""
    turned: bool = False
    row_scales: BufferSlice | None = None

    @property
    def size(self) -> int:
        """Bytes of GPU memory."""
        scales = self.row_scales.size if self.row_scales else 0
        return sum(part.slice.size for part in self.parts) + scales


def words_per_row(dtype: DType, row_elements: int) -> int:
    """32-bit words of one stored row in GPU memory.

    Raises:
        FormatError: No kernel reads this type.
    """
    if dtype.name not in GPU_DTYPES:
        raise FormatError("no kernel reads this type", expected=GPU_DTYPES, found=dtype.name)
    if not dtype.is_block:
        return -(-row_elements * dtype.block_bytes // 16) * 4
    blocks = -(-row_elements // dtype.block_elements)
    return blocks * BLOCK_FORMS[dtype.name].words


def pack_rows(dtype: DType, blocks: Bytes) -> Words:
    """Stored rows in the form that the kernels read.

    Args:
        dtype: Storage type.
        blocks: Bytes as stored, uint8 [rows, row_bytes].

    Returns:
        uint32 [rows, words].

    Raises:
        FormatError: Rows of no whole number of blocks, or no kernel reads the type.
    """
    rows, size = blocks.shape
    if size % dtype.block_bytes:
        raise FormatError(
            "row of no whole blocks", expected=f"a multiple of {dtype.block_bytes}", found=size
        )
    count = size // dtype.block_bytes
    words = words_per_row(dtype, count * dtype.block_elements)
    form = BLOCK_FORMS.get(dtype.name)
    if form is not None:
        if form.scale is None:
            return np.ascontiguousarray(blocks).view("<u4")
        table = blocks.reshape(rows, count, -1)
        return _widen_scales(table, form.scale, form.words).reshape(rows, words)
    padded = np.zeros((rows, words * 4), np.uint8)
    padded[:, :size] = blocks
    return padded.view("<u4")


def _widen_scales(blocks: Bytes, scale: slice, words: int) -> Words:
    """Blocks [rows, count, bytes] as [rows, count, words], their f16 scale as f32."""
    rows, count, size = blocks.shape
    wide = np.ascontiguousarray(blocks[:, :, scale]).view("<f2").astype("<f4").view(np.uint8)
    out = np.zeros((rows, count, 4 * words), np.uint8)
    at = scale.start
    out[:, :, :at] = blocks[:, :, :at]
    out[:, :, at : at + 4] = wide
    out[:, :, at + 4 : size + 2] = blocks[:, :, at + 2 :]
    return out.view("<u4")


def upload_weight(
    arena: Arena,
    dtype: DType,
    layout: Layout,
    shape: tuple[int, int],
    data: Any | Iterable[Any],
    label: str,
) -> GpuWeight:
    """Put a matrix into GPU memory.

    Args:
        arena: Owner of the buffers.
        dtype: Storage type.
        layout: Order in storage; of `flat` only what equals `row`, or what `flat_words` allows.
        shape: Logical shape (N, K).
        data: The stored bytes (anything with the buffer protocol), or an iterable of such chunks,
            each a whole number of stored rows.
        label: Name of the tensor, for messages and buffer labels.

    Raises:
        FormatError: Bytes that do not fit the shape, or a form that no kernel reads.
        DeviceError: Out of memory.
    """
    if layout is Layout.FLAT and shape[1] % dtype.block_elements == 0:
        layout = Layout.ROW
    stored = geometry(dtype, shape, layout)
    weight = allocate_weight(arena, dtype, layout, shape, label)
    if layout is Layout.FLAT:
        _write_flat(arena, weight, data, label)
        return weight
    row = 0
    for chunk in _row_chunks(data, stored, label):
        packed = pack_rows(dtype, chunk)
        _write_rows(arena, weight, packed, row)
        row += len(packed)
    if row != stored.rows:
        raise FormatError(
            "tensor ends early", where=label, expected=f"{stored.rows} rows", found=f"{row}"
        )
    return weight


def allocate_weight(
    arena: Arena, dtype: DType, layout: Layout, shape: tuple[int, int], label: str
) -> GpuWeight:
    """A zeroed matrix.

    Raises:
        FormatError: No kernel reads the form, or a row exceeds the binding limit.
        DeviceError: Out of memory.
    """
    stored = geometry(dtype, shape, layout)
    if layout is Layout.FLAT:
        rows, words = shape[0], flat_words(dtype, shape[1], label)
    else:
        rows, words = stored.rows, words_per_row(dtype, stored.row_elements)
    fit = arena.max_binding // (4 * words) // PART_ROWS * PART_ROWS
    if not fit or not rows:
        raise FormatError(
            "matrix has no rows or a row beyond the binding limit", where=label, found=list(shape)
        )
    parts = tuple(
        Part(
            arena.empty(f"{label}.{first}", _part_bytes(dtype, words, min(fit, rows - first))),
            first,
            min(fit, rows - first),
        )
        for first in range(0, rows, fit)
    )
    return GpuWeight(dtype, layout, shape[0], shape[1], words, parts)


def flat_words(dtype: DType, k: int, label: str = "") -> int:
    """32-bit words of a row of `k` inputs in blocks that run across rows.

    Rows may begin within a block, but only where a whole `FLAT_GRANULES` of it does.

    Raises:
        FormatError: No kernel reads such rows.
    """
    granule = FLAT_GRANULES.get(dtype.name)
    if granule is None or k % granule:
        raise FormatError(
            "flat blocks cross rows where no kernel reads them",
            where=label,
            expected=f"a multiple of {granule}" if granule else ", ".join(FLAT_GRANULES),
            found=k if granule else dtype.name,
            hint="dequantize the tensor when it is loaded",
        )
    return k * BLOCK_FORMS[dtype.name].words // dtype.block_elements


def _part_bytes(dtype: DType, words: int, rows: int) -> int:
    """Bytes of so many rows, in whole blocks."""
    form = BLOCK_FORMS.get(dtype.name)
    unit = form.words if form else 1
    return 4 * (-(-rows * words // unit) * unit)


def _write_flat(arena: Arena, weight: GpuWeight, data: Any, label: str) -> None:
    """Write the blocks of a flat matrix, from bytes or an iterable of whole blocks."""
    size, words = weight.dtype.block_bytes, BLOCK_FORMS[weight.dtype.name].words
    whole = isinstance(data, (bytes, bytearray, memoryview, np.ndarray))
    at = 0
    for chunk in [data] if whole else data:
        raw = np.frombuffer(chunk, dtype=np.uint8)
        if raw.size % size:
            raise FormatError("bytes of no whole blocks", where=label, found=raw.size)
        blocks = raw.reshape(-1, size)
        for first in range(0, len(blocks), _CHUNK_BYTES // size):
            packed = pack_rows(weight.dtype, blocks[first : first + _CHUNK_BYTES // size])
            _write_blocks(arena, weight, packed, at, words)
            at += len(packed)
    expected = -(-weight.n * weight.k // weight.dtype.block_elements)
    if at != expected:
        raise FormatError("tensor ends early", where=label, expected=f"{expected} blocks", found=at)


def _write_blocks(arena: Arena, weight: GpuWeight, packed: Words, block: int, words: int) -> None:
    """Write packed blocks to the parts that hold them, the first of them being block `block`."""
    for part in weight.parts:
        start = part.first_row * weight.words_per_row // words
        first = max(block, start)
        last = min(block + len(packed), start + part.slice.size // (4 * words))
        if first < last:
            arena.write(
                part.slice, packed[first - block : last - block], (first - start) * words * 4
            )


def _row_chunks(data: Any, stored: Geometry, label: str) -> Iterator[Bytes]:
    """Chunks of stored rows, uint8 [rows, row_bytes], none much larger than `_CHUNK_BYTES`."""
    whole = isinstance(data, (bytes, bytearray, memoryview, np.ndarray))
    step = max(1, _CHUNK_BYTES // stored.row_bytes)
    left = stored.rows
    for chunk in [data] if whole else data:
        raw = np.frombuffer(chunk, dtype=np.uint8)
        rows, rest = divmod(raw.size, stored.row_bytes)
        if rest or rows > left:
            raise FormatError(
                "bytes do not fit the shape",
                where=label,
                expected=f"at most {left} rows of {stored.row_bytes} bytes",
                found=f"{raw.size} bytes",
            )
        left -= rows
        table = raw.reshape(rows, stored.row_bytes)
        for first in range(0, rows, step):
            yield table[first : first + step]


def _write_rows(arena: Arena, weight: GpuWeight, packed: Words, row: int) -> None:
    """Write packed rows to the parts that hold them, the first of them being row `row`."""
    for part in weight.parts:
        first = max(row, part.first_row)
        last = min(row + len(packed), part.first_row + part.rows)
        if first < last:
            offset = (first - part.first_row) * weight.words_per_row * 4
            arena.write(part.slice, packed[first - row : last - row], offset)
