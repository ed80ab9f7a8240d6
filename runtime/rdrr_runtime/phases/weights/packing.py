"""Upload of weights into GPU memory.

Stored blocks are sent to the device unchanged, a bounded number of bytes at a time, and repacked
there. Unquantized values are written unchanged, with rows zero-padded to a multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.fences import IN_FLIGHT_BYTES
from rdrr_format.dtypes import DType
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Geometry, Layout, geometry

from rdrr_runtime.phases.weights.formats import UNIT
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.weights.repack import repack
from rdrr_runtime.phases.weights.repack_batch import TARGETS_BYTES, RepackBatch

Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES = 32 << 20
"""Most bytes of stored blocks in the staging buffer on the device, and of one write to it."""

_HOST_BYTES = 16 << 20  # host memory for the rows that are padded at a time


def staging_bytes(total: int) -> int:
    """Return an upper bound on the temporary device memory that uploading weights takes, in bytes.

    Args:
        total: Stored bytes of all weights.
    """
    return min(total, CHUNK_BYTES) + TARGETS_BYTES + min(total, IN_FLIGHT_BYTES)


def upload_weight(
    arena: Arena,
    dtype: DType,
    layout: Layout,
    shape: tuple[int, int],
    data: Any | Iterable[Any],
    label: str,
    *,
    units_first: bool = False,
) -> GpuWeight:
    """Upload a matrix into GPU memory.

    Args:
        arena: Owner of the buffers.
        dtype: Storage type.
        layout: Layout in storage; `flat` only if each row consists of whole blocks or units.
        shape: Logical shape (N, K).
        data: The stored bytes (anything with the buffer protocol), or an iterable of chunks of
            them, each a whole number of stored rows.
        label: Name of the tensor, for messages and buffer labels.
        units_first: See `allocate_weight`.

    Raises:
        FormatError: The bytes do not match the shape, or no kernel reads the type or layout.
        DeviceError: The device is out of memory.
    """
    weight = allocate_weight(arena, dtype, layout, shape, label, units_first=units_first)
    with arena.temporary() as temporary, Uploader(arena, temporary) as uploader:
        uploader.fill(weight, layout, shape, [data], label)
    return weight


class Uploader:
    """Fills matrices in GPU memory; all are filled at the end of a `with` block.

    Args:
        arena: Owner of the matrices.
        temporary: Owner of the staging buffer; it must live until the last matrix is filled.
        size: Stored bytes of all matrices, if they are known.
    """

    def __init__(self, arena: Arena, temporary: Arena, size: int = 0) -> None:
        self._arena = arena
        self._max_bytes = min(CHUNK_BYTES, arena.max_binding)
        self._batch = RepackBatch(arena, temporary, min(size, self._max_bytes))

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._batch.send()

    def fill(
        self,
        weight: GpuWeight,
        layout: Layout,
        shape: tuple[int, int],
        matrices: Iterable[Any],
        label: str,
    ) -> None:
        """Fill a weight with its matrix, or with all matrices of its stack.

        Args:
            weight: The result of `allocate_weight` for as many matrices.
            layout: Layout in storage.
            shape: (N, K) of each matrix.
            matrices: The stored bytes of each matrix, whole or in chunks, see `upload_weight`.
            label: Name of the tensor, for messages.

        Raises:
            FormatError: The bytes do not match the shape.
        """
        stored = stored_geometry(weight.dtype, layout, shape)
        before = 0
        for number, data in enumerate(matrices):
            rows = _row_chunks(data, stored, label)
            if weight.form.values:
                written = self._write_values(weight, rows, before)
            else:
                written = self._repack(weight, stored, rows, number, label)
            if written != stored.rows:
                what = "blocks" if layout is Layout.FLAT else "rows"
                raise FormatError(
                    "the tensor is truncated",
                    where=label,
                    expected=f"{stored.rows} {what}",
                    found=f"{written}",
                )
            before += written

    def _write_values(self, weight: GpuWeight, chunks: Iterator[Bytes], before: int) -> int:
        done = 0
        for chunk in chunks:
            for first in range(0, len(chunk), step := _rows_at_a_time(16 * weight.units)):
                some = _padded(chunk[first : first + step], 16 * weight.units)
                _write_rows(self._arena, weight, some, before + done)
                done += len(some)
        return done

    def _repack(
        self, weight: GpuWeight, stored: Geometry, chunks: Iterator[Bytes], number: int, label: str
    ) -> int:
        done, step = 0, UNIT if weight.by_column else 1
        for piece in _regrouped(chunks, rows_of_chunk(weight, stored, self._max_bytes), step):
            chunk = self._batch.stage(piece, done, stored.row_blocks)
            self._batch.add(repack(weight, chunk, number, stored.rows, label))
            done += len(piece)
        return done


def rows_of_chunk(weight: GpuWeight, stored: Geometry, most: int) -> int:
    """Return the stored rows to repack at a time, for chunks of at most `most` bytes."""
    rows = most // stored.row_bytes
    return max(UNIT, rows // UNIT * UNIT) if weight.by_column else max(1, rows)


def stored_geometry(dtype: DType, layout: Layout, shape: tuple[int, int]) -> Geometry:
    """Return the geometry of the stored rows; if flat blocks cross rows, each block is a row."""
    if layout is not Layout.FLAT:
        return geometry(dtype, shape, layout)
    if shape[1] % dtype.block_elements == 0:
        return geometry(dtype, shape)
    blocks = geometry(dtype, shape, layout).row_blocks
    return geometry(dtype, (blocks, dtype.block_elements))


def _row_chunks(data: Any, stored: Geometry, label: str) -> Iterator[Bytes]:
    """Yield chunks of stored rows, uint8 [rows, row_bytes]."""
    whole = isinstance(data, (bytes, bytearray, memoryview, np.ndarray))
    left = stored.rows
    for chunk in [data] if whole else data:
        raw = np.frombuffer(chunk, dtype=np.uint8)
        rows, rest = divmod(raw.size, stored.row_bytes)
        if rest or rows > left:
            raise FormatError(
                "the number of bytes does not match the shape of the tensor",
                where=label,
                expected=f"at most {left} rows of {stored.row_bytes} bytes",
                found=f"{raw.size} bytes",
            )
        left -= rows
        yield raw.reshape(rows, stored.row_bytes)


def _regrouped(chunks: Iterator[Bytes], most: int, step: int) -> Iterator[Bytes]:
    """Yield the same rows in chunks of at most `most` rows.

    Every chunk but the last is a multiple of `step` rows. What has been yielded of a chunk is not
    read any more, and no chunk once the next one has been asked for.
    """
    rest: Bytes | None = None
    for chunk in chunks:
        rows = chunk if rest is None else np.concatenate([rest, chunk])
        whole = len(rows) // step * step
        rest = rows[whole:].copy() if whole < len(rows) else None
        for first in range(0, whole, most):
            yield rows[first : min(first + most, whole)]
    if rest is not None:
        yield rest


def _rows_at_a_time(row_bytes: int) -> int:
    return max(1, _HOST_BYTES // row_bytes)


def _padded(rows: Bytes, row_bytes: int) -> Bytes:
    """Return rows zero-padded to `row_bytes` bytes."""
    if rows.shape[1] == row_bytes:
        return np.ascontiguousarray(rows)
    padded = np.zeros((len(rows), row_bytes), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded


def _write_rows(arena: Arena, weight: GpuWeight, rows: Bytes, row: int) -> None:
    """Write rows, the first of which is row `row` of the matrix, to the parts that hold them."""
    for part in weight.parts:
        first = max(row, part.first_row)
        last = min(row + len(rows), part.first_row + part.rows)
        if first < last:
            offset = (first - part.first_row) * 16 * weight.units
            arena.write(part.slice, rows[first - row : last - row], offset)
