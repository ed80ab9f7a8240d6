"""Encoding of planned tensors, chunk by chunk, by an engine and possibly a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS
from rdrr_format.layouts import Layout

from rdrr_converter.checkpoint.source import F32Array
from rdrr_converter.devices import CPU, BlockDevice
from rdrr_converter.encode.chunks import Chunk, byte_range, read_chunk, stored_rows
from rdrr_converter.encode.offload import EncodedChunk, WorkItem, encode_on_device
from rdrr_converter.engines import Engine
from rdrr_converter.plan import PlannedTensor

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class WorkerPool:
    """The engine and the device that encode, and counts of the blocks they have encoded.

    Attributes:
        engine: Reads chunks, and encodes those that the device does not.
        device: Encodes blocks; None if the CPU encodes everything.
        device_name: `cpu`, or the name of the device.
        blocks: Number of encoded blocks by the name of the device that encoded them.
    """

    engine: Engine
    device: BlockDevice | None = None
    device_name: str = CPU
    blocks: Counter[str] = field(default_factory=Counter)

    def count(self, chunk: EncodedChunk) -> None:
        """Count the blocks of an encoded chunk; scalars and copied blocks do not count."""
        dtype, copied = chunk.work[0].dtype, chunk.work[0].is_copied
        if dtype.is_block and not copied:
            self.blocks[self.device_name] += chunk.by_device
            self.blocks[CPU] += len(chunk.data) // dtype.block_bytes - chunk.by_device


def encode_chunk(work: WorkItem) -> Bytes:
    """Encode a chunk on the CPU and return its stored bytes, uint8 [bytes]."""
    tensor, chunk = work
    if tensor.encoded is not None:
        start, size = byte_range(tensor, chunk)
        return np.fromfile(tensor.encoded, np.uint8, size, offset=start)
    if tensor.is_copied:
        blocks = stored_rows(tensor.sources, chunk.first, chunk.first + chunk.count)
        return np.ascontiguousarray(blocks).reshape(-1)
    return encode_rows(tensor, chunk, read_chunk(tensor, chunk)).reshape(-1)


def encode_rows(tensor: PlannedTensor, chunk: Chunk, rows: F32Array) -> Bytes:
    """Encode the rows of a chunk, uint8 [stored rows, row bytes]."""
    codec = CODECS[tensor.dtype.name]
    parts = [
        codec.encode(part, importance, tensor.quality)
        for part, importance in _rows_by_importance(tensor, chunk, rows)
    ]
    return np.concatenate(parts)


def _rows_by_importance(
    tensor: PlannedTensor, chunk: Chunk, rows: F32Array
) -> Iterator[tuple[F32Array, F32Array | None]]:
    """Yield the rows of a chunk in parts, each with its importance.

    The importance is float32 [columns] and applies to all rows of the part; in the layout `flat`
    it has one value per element. It is None if nothing is known.
    """
    if not tensor.importance:
        yield rows, None
        return
    if tensor.layout is Layout.COLUMN:
        # The outputs of all parts lie side by side in each stored row.
        by_output = [part.rows for part in tensor.importance if part.rows is not None]
        yield rows, np.concatenate(by_output)
        return
    columns = [part.columns for part in tensor.importance]
    starts = np.cumsum([0, *(part.rows for part in tensor.sources)])
    if tensor.layout is Layout.FLAT:
        row, column = np.divmod(
            np.arange(chunk.first, chunk.first + chunk.count), tensor.sources[0].columns
        )
        part = np.searchsorted(starts, row, side="right") - 1
        yield rows, np.stack(columns)[part, column]
        return
    for importance, (first, end) in zip(columns, pairwise(starts), strict=True):
        here = slice(max(first - chunk.first, 0), max(end - chunk.first, 0))
        if len(rows[here]):
            yield rows[here], importance


def encode_chunks(work: Iterable[WorkItem], pool: WorkerPool) -> Iterator[tuple[WorkItem, Bytes]]:
    """Yield the chunks with their stored bytes, in the given order."""
    engine, device = pool.engine, pool.device
    results: Iterator[EncodedChunk]
    if device is None:
        results = (EncodedChunk(item, data) for item, data in engine.map(encode_chunk, work))
    else:
        results = encode_on_device(device, work, engine, encode_chunk)
    for result in results:
        pool.count(result)
        yield result.work, result.data
