"""Chunks whose blocks a device encodes, several at a time, behind the threads that read them.

    threads        read chunks; encode those that are not for the device
    a thread       sends a batch to the device, waits, and has the CPU encode what came back as fallback
    the caller     takes the results in storage order

At most three batches are in memory: one that is gathered, one that is encoded, one that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS, bf16_to_f32

from rdrr_converter.devices import BLOCK, BlockDevice, Bytes, Weights, portions
from rdrr_converter.engines import Engine, open_engine
from rdrr_converter.plan import PlannedTensor
from rdrr_converter.transforms import Chunk, chunk_weights, read_chunk, stored_chunk

WorkItem = tuple[PlannedTensor, Chunk]


@dataclass(frozen=True)
class PreparedChunk:
    """A chunk that was read.

    Attributes:
        work: Which one.
        weights: What the device is to encode; None where `data` is there.
        data: The stored bytes; None where they are the device's to make.
    """

    work: WorkItem
    weights: Weights | None = None
    data: Bytes | None = None


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk with its stored bytes.

    Attributes:
        work: Which one.
        data: The bytes.
        by_device: Blocks that the device encoded.
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
    """Chunks with their stored bytes, in their order.

    Args:
        device: Encodes what it can.
        work: The chunks.
        engine: Reads them.
        by_cpu: Encodes the others.
    """

    def prepare(one: WorkItem) -> PreparedChunk:
        if _is_for(device, one[0]):
            return PreparedChunk(one, weights=_blocks(*one))
        return PreparedChunk(one, data=by_cpu(one))

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
        and not tensor.is_copied
    )


def _blocks(tensor: PlannedTensor, chunk: Chunk) -> Weights:
    """The weights of a chunk in whole blocks [n, 256], in two bytes each where that is enough."""
    rows: npt.NDArray[Any]
    if all(part.is_plain_bf16 for part in tensor.sources):
        # Copied, so that the pages of a mapped file are read in this thread.
        rows = np.array(stored_chunk(tensor, chunk))
    else:
        rows = read_chunk(tensor, chunk)
    missing = -rows.shape[1] % BLOCK
    padded = np.pad(rows, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(rows)
    return padded.reshape(-1, BLOCK)


def _batches(prepared: Iterable[PreparedChunk], capacity: int) -> Iterator[list[PreparedChunk]]:
    """Runs of chunks with about as many blocks as the device takes at a time."""
    batch: list[PreparedChunk] = []
    filled = 0
    for one in prepared:
        size = chunk_weights(*one.work) // BLOCK
        if batch and filled + size > capacity:
            yield batch
            batch, filled = [], 0
        batch.append(one)
        filled += size
    if batch:
        yield batch


def _encode(device: BlockDevice, batch: Sequence[PreparedChunk]) -> list[EncodedChunk]:
    """The chunks of a batch; those of one type are sent together."""
    results = {
        at: EncodedChunk(one.work, one.data) for at, one in enumerate(batch) if one.data is not None
    }
    kinds: dict[tuple[str, str], dict[int, Weights]] = {}
    for at, one in enumerate(batch):
        if one.weights is not None:
            kind = (one.work[0].dtype.name, one.weights.dtype.name)
            kinds.setdefault(kind, {})[at] = one.weights
    for (dtype, _), parts in kinds.items():
        blocks, fallback = _encode_blocks(device, dtype, list(parts.values()))
        first = 0
        for at, weights in parts.items():
            here = slice(first, first + len(weights))
            own = len(weights) - int(np.count_nonzero(fallback[here]))
            results[at] = EncodedChunk(batch[at].work, blocks[here].reshape(-1), own)
            first += len(weights)
    return [results[at] for at in range(len(batch))]


def _encode_blocks(
    device: BlockDevice, dtype: str, parts: Sequence[Weights]
) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Blocks of one type, and which of them the CPU encoded."""
    done = []
    for portion in portions(parts, device.capacity):
        blocks, fallback = device.encode(dtype, portion)
        if fallback.any():
            blocks[fallback] = CODECS[dtype].quantize(_widened(np.concatenate(portion)[fallback]))
        done.append((blocks, fallback))
    if len(done) == 1:
        return done[0]
    return np.concatenate([one[0] for one in done]), np.concatenate([one[1] for one in done])


def _widened(weights: Weights) -> npt.NDArray[np.float32]:
    return bf16_to_f32(weights) if weights.dtype == np.uint16 else weights
