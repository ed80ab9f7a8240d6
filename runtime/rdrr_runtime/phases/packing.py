"""Weights on their way into GPU memory.

Stored blocks go to the device as they are, a bounded number of bytes at a time, and are repacked
there. Single values are written as they are, their rows padded with zeros to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DType
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Geometry, Layout, geometry

from rdrr_runtime.phases.formats import UNIT
from rdrr_runtime.phases.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.repack import TARGET_BYTES, Chunk, RepackStep, repack_columns, repack_rows

Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES = 32 << 20
"""Bytes of stored blocks on the device at a time."""

IN_FLIGHT_BYTES = 128 << 20
"""Bytes of stored blocks that may be on their way to the device."""

_HOST_BYTES = 16 << 20  # host memory that padding may take at a time


def staging_bytes(largest: int, total: int) -> int:
    """Most bytes that pass through memory of the device while weights are uploaded.

    Args:
        largest: Stored bytes of the largest matrix.
        total: Stored bytes of all weights.
    """
    return min(largest, CHUNK_BYTES) + TARGET_BYTES + min(total, IN_FLIGHT_BYTES)


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
        layout: Order in storage; of `flat` only rows of whole units.
        shape: Logical shape (N, K).
        data: The stored bytes (anything with the buffer protocol), or an iterable of such chunks,
            each a whole number of stored rows.
        label: Name of the tensor, for messages and buffer labels.

    Raises:
        FormatError: Bytes that do not fit the shape, or a form that no kernel reads.
        DeviceError: Out of memory.
    """
    weight = allocate_weight(arena, dtype, layout, shape, label)
    with arena.temporary() as passing:
        Uploader(arena, passing).fill(weight, layout, shape, [data], label)
    return weight


class Uploader:
    """Writes matrices, through one buffer for their stored blocks.

    Args:
        arena: Owner of the matrices.
        passing: Owner of that buffer, which must live until the last matrix is filled.
    """

    def __init__(self, arena: Arena, passing: Arena) -> None:
        self._arena = arena
        self._passing = passing
        self._staging: BufferSlice | None = None
        self._under_way = 0
        self._most = min(CHUNK_BYTES, arena.max_binding)
        self._target = passing.empty("chunk", TARGET_BYTES)

    def fill(
        self,
        weight: GpuWeight,
        layout: Layout,
        shape: tuple[int, int],
        matrices: Iterable[Any],
        label: str,
    ) -> None:
        """Write the matrices that `weight` holds.

        Args:
            weight: Made by `allocate_weight` for as many matrices.
            layout: Order in which they are stored.
            shape: (N, K) of each.
            matrices: The stored bytes of each, whole or in chunks, see `upload_weight`.
            label: Name of the tensor.

        Raises:
            FormatError: Bytes that do not fit the shape.
        """
        stored = _stored(weight.dtype, layout, shape)
        before = 0
        for number, data in enumerate(matrices):
            rows = _row_chunks(data, stored, label)
            if weight.form.values:
                made = self._write_values(weight, rows, before)
            elif weight.by_column:
                made = self._repack_columns(weight, stored, rows, number * weight.stride, label)
            else:
                made = self._repack_rows(weight, stored, rows, before, label)
            if made != stored.rows:
                what = "blocks" if layout is Layout.FLAT else "rows"
                raise FormatError(
                    "tensor ends early",
                    where=label,
                    expected=f"{stored.rows} {what}",
                    found=f"{made}",
                )
            before += made

    def _write_values(self, weight: GpuWeight, chunks: Iterator[Bytes], before: int) -> int:
        done = 0
        for chunk in chunks:
            for first in range(0, len(chunk), step := _rows_at_a_time(16 * weight.units)):
                some = _padded(chunk[first : first + step], 16 * weight.units)
                _write_rows(self._arena, weight, some, before + done)
                done += len(some)
        return done

    def _repack_rows(
        self, weight: GpuWeight, stored: Geometry, chunks: Iterator[Bytes], before: int, label: str
    ) -> int:
        done = 0
        for piece in _regrouped(chunks, max(1, self._most // stored.row_bytes), 1):
            chunk = Chunk(
                self._sent(piece), self._target, before + done, len(piece), stored.row_blocks
            )
            self._run(chunk, repack_rows(weight, chunk, label))
            done += len(piece)
        return done

    def _repack_columns(
        self, weight: GpuWeight, stored: Geometry, chunks: Iterator[Bytes], before: int, label: str
    ) -> int:
        done = 0
        most = max(UNIT, self._most // stored.row_bytes // UNIT * UNIT)
        for piece in _regrouped(chunks, most, UNIT):
            chunk = Chunk(self._sent(piece), self._target, done, len(piece), stored.row_blocks)
            self._run(chunk, repack_columns(weight, chunk, before, label))
            done += len(piece)
        return done

    def _run(self, chunk: Chunk, steps: Iterator[RepackStep]) -> None:
        for one in steps:
            self._passing.write(chunk.target, one.target)
            self._arena.run(as_dispatch(one.phase))

    def _sent(self, rows: Bytes) -> BufferSlice:
        """Stored rows on the device, until the next ones are sent."""
        data = np.ascontiguousarray(rows).reshape(-1)
        if data.size % 4:
            data = np.concatenate([data, np.zeros(-data.size % 4, np.uint8)])
        if self._staging is None or self._staging.size < data.size:
            self._staging = self._passing.empty("blocks", data.size)
        self._under_way += data.size
        if self._under_way > IN_FLIGHT_BYTES:  # a device that is slower than its host
            self._passing.wait()
            self._under_way = data.size
        self._passing.write(self._staging, data)
        return self._staging


def _stored(dtype: DType, layout: Layout, shape: tuple[int, int]) -> Geometry:
    """Stored rows; those of blocks that cross rows are the blocks."""
    if layout is not Layout.FLAT:
        return geometry(dtype, shape, layout)
    if shape[1] % dtype.block_elements == 0:
        return geometry(dtype, shape)
    blocks = geometry(dtype, shape, layout).row_blocks
    return geometry(dtype, (blocks, dtype.block_elements))


def _row_chunks(data: Any, stored: Geometry, label: str) -> Iterator[Bytes]:
    """Chunks of stored rows, uint8 [rows, row_bytes]."""
    whole = isinstance(data, (bytes, bytearray, memoryview, np.ndarray))
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
        yield raw.reshape(rows, stored.row_bytes)


def _regrouped(chunks: Iterator[Bytes], most: int, step: int) -> Iterator[Bytes]:
    """The same rows, at most `most` at a time and but for the last a multiple of `step`."""
    kept: list[Bytes] = []
    count = 0
    for chunk in chunks:
        kept.append(chunk)
        count += len(chunk)
        whole = count // step * step
        if not whole:
            continue
        rows = kept[0] if len(kept) == 1 else np.concatenate(kept)
        for first in range(0, whole, most):
            yield rows[first : min(first + most, whole)]
        kept, count = [rows[whole:]], count - whole
    if count:
        yield np.concatenate(kept)


def _rows_at_a_time(row_bytes: int) -> int:
    return max(1, _HOST_BYTES // row_bytes)


def _padded(rows: Bytes, row_bytes: int) -> Bytes:
    """Rows of bytes with zeros after them."""
    if rows.shape[1] == row_bytes:
        return np.ascontiguousarray(rows)
    padded = np.zeros((len(rows), row_bytes), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded


def _write_rows(arena: Arena, weight: GpuWeight, rows: Bytes, row: int) -> None:
    """Write rows to the parts that hold them, the first of them being row `row`."""
    for part in weight.parts:
        first = max(row, part.first_row)
        last = min(row + len(rows), part.first_row + part.rows)
        if first < last:
            offset = (first - part.first_row) * 16 * weight.units
            arena.write(part.slice, rows[first - row : last - row], offset)
