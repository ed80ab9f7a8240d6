"""Encoding on a device: worker threads read chunks, and batches of them go to the device.

    worker threads    read chunks, and encode those that are not for the device
    sender thread     sends a batch to the device, waits for it, and encodes the fallback blocks
                      of the batch on the CPU
    caller            receives the results in storage order

At most three batches are in memory: one being gathered, one being encoded, and one waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS, bf16_to_f32

from rdrr_converter.devices import BLOCK, BlockDevice, Bytes, Weights, portions
from rdrr_converter.encode.chunks import Chunk, chunk_weights, read_chunk, stored_chunk
from rdrr_converter.engines import Engine, open_engine
from rdrr_converter.plan import PlannedTensor

WorkItem = tuple[PlannedTensor, Chunk]


@dataclass(frozen=True)
class PreparedChunk:
    """A chunk that was read, and encoded already if it is not for the device.

    Attributes:
        work: The tensor and the chunk.
        weights: Blocks for the device to encode; None if `data` is given.
        data: The stored bytes; None if the device is to encode them.
    """

    work: WorkItem
    weights: Weights | None = None
    data: Bytes | None = None


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk with its stored bytes.

    Attributes:
        work: The tensor and the chunk.
        data: The stored bytes.
        by_device: Number of blocks that the device encoded.
    """

    work: WorkItem
    data: Bytes
    by_device: int = 0


def encode_on_device(
    device: BlockDevice,
    work: Iterable[WorkItem],
    engine: Engine,
    by_cpu: Callable[[WorkItem], Bytes],
) -> Iterator[EncodedChunk]:
    """Encode chunks on a device where it can, and yield them in the given order.

    Args:
        device: Encodes the blocks of the types that it supports.
        work: The chunks to encode.
        engine: Reads the chunks.
        by_cpu: Encodes the chunks that are not for the device.
    """

    def prepare(item: WorkItem) -> PreparedChunk:
        if _is_for(device, item[0]):
            return PreparedChunk(item, weights=_blocks(*item))
        return PreparedChunk(item, data=by_cpu(item))

    def encode(batch: Sequence[PreparedChunk]) -> list[EncodedChunk]:
        return _encode(device, batch)

    prepared = (result for _, result in engine.map(prepare, work))
    with open_engine("threads", 1) as sender:
        for _, results in sender.map(encode, _batches(prepared, device.capacity)):
            yield from results


def _is_for(device: BlockDevice, tensor: PlannedTensor) -> bool:
    return (
        tensor.dtype.name in device.types
        and tensor.quality == "ref"
        and not tensor.importance
        and tensor.encoded is None
        and not tensor.is_copied
    )


def _blocks(tensor: PlannedTensor, chunk: Chunk) -> Weights:
    """Read the weights of a chunk as padded blocks [n, 256], in bfloat16 if the source is."""
    rows: npt.NDArray[Any]
    if all(part.is_plain_bf16 for part in tensor.sources):
        # The copy makes this thread, not the sender, read the pages of a mapped file.
        rows = np.array(stored_chunk(tensor, chunk))
    else:
        rows = read_chunk(tensor, chunk)
    missing = -rows.shape[1] % BLOCK
    padded = np.pad(rows, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(rows)
    return padded.reshape(-1, BLOCK)


def _batches(prepared: Iterable[PreparedChunk], capacity: int) -> Iterator[list[PreparedChunk]]:
    """Group consecutive chunks into batches that fill the device's capacity."""
    batch: list[PreparedChunk] = []
    filled = 0
    for chunk in prepared:
        size = chunk_weights(*chunk.work) // BLOCK
        if batch and filled + size > capacity:
            yield batch
            batch, filled = [], 0
        batch.append(chunk)
        filled += size
    if batch:
        yield batch


def _encode(device: BlockDevice, batch: Sequence[PreparedChunk]) -> list[EncodedChunk]:
    """Encode the chunks of a batch, sending chunks of one type to the device together."""
    results = {
        at: EncodedChunk(chunk.work, chunk.data)
        for at, chunk in enumerate(batch)
        if chunk.data is not None
    }
    kinds: dict[tuple[str, str], dict[int, Weights]] = {}
    for at, chunk in enumerate(batch):
        if chunk.weights is not None:
            kind = (chunk.work[0].dtype.name, chunk.weights.dtype.name)
            kinds.setdefault(kind, {})[at] = chunk.weights
    for (dtype, _), parts in kinds.items():
        blocks, fallback = _encode_blocks(device, dtype, list(parts.values()))
        first = 0
        for at, weights in parts.items():
            here = slice(first, first + len(weights))
            by_device = len(weights) - int(np.count_nonzero(fallback[here]))
            results[at] = EncodedChunk(batch[at].work, blocks[here].reshape(-1), by_device)
            first += len(weights)
    return [results[at] for at in range(len(batch))]


def _encode_blocks(
    device: BlockDevice, dtype: str, parts: Sequence[Weights]
) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Encode blocks of one type, and return them with flags [n] of those that the CPU encoded."""
    done = []
    for portion in portions(parts, device.capacity):
        blocks, fallback = device.encode(dtype, portion)
        if fallback.any():
            blocks[fallback] = CODECS[dtype].quantize(_widened(np.concatenate(portion)[fallback]))
        done.append((blocks, fallback))
    if len(done) == 1:
        return done[0]
    return np.concatenate([part[0] for part in done]), np.concatenate([part[1] for part in done])


def _widened(weights: Weights) -> npt.NDArray[np.float32]:
    return bf16_to_f32(weights) if weights.dtype == np.uint16 else weights
