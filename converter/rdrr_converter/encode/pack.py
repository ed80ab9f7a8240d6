"""Writing planned tensors into shards at the positions that the plan assigns."""

from __future__ import annotations

from collections.abc import Iterator

from rdrr_format.errors import ConversionError
from rdrr_format.shard_writer import ShardWriter
from rdrr_format.shards import ShardInfo

from rdrr_converter.encode.chunks import byte_range, chunk_weights, chunks
from rdrr_converter.encode.offload import WorkItem
from rdrr_converter.encode.quantize import WorkerPool, encode_chunks
from rdrr_converter.options import PackageOptions
from rdrr_converter.plan import ConversionPlan, PlannedTensor
from rdrr_converter.progress import Progress


def write_shards(
    plan: ConversionPlan,
    writer: ShardWriter,
    options: PackageOptions,
    pool: WorkerPool,
    progress: Progress,
) -> tuple[ShardInfo, ...]:
    """Encode and write all tensors, from the writer's position on.

    Returns:
        All shards with their hashes.

    Raises:
        StoreError: The disk is full, or the store refuses a write.
        SourceError: A source file can no longer be read.
        ConversionError: A tensor would be written at another position than planned.
    """
    progress.start("write", sum(tensor.weights for tensor in plan.tensors))
    start = writer.position
    left = _left(plan, options.shard_size, start, progress)
    try:
        for (tensor, chunk), data in encode_chunks(left, pool):
            at = _stream_start(tensor, options.shard_size) + byte_range(tensor, chunk)[0]
            if chunk.first == 0 and at >= start:
                writer.align(options.align)
            written = max(0, start - at)
            _check_place(tensor, at + written, writer.position)
            writer.write(data[written:].data)
            progress.advance(tensor.name, chunk_weights(tensor, chunk))
        _check_place(plan.tensors[-1], plan.total_size, writer.position)
        return writer.close()
    finally:
        writer.abort()


def _left(
    plan: ConversionPlan, shard_size: int, start: int, progress: Progress
) -> Iterator[WorkItem]:
    """Yield the chunks that end behind byte `start` of the stream, in storage order."""
    for tensor in plan.tensors:
        for chunk in chunks(tensor):
            first, size = byte_range(tensor, chunk)
            if _stream_start(tensor, shard_size) + first + size > start:
                yield tensor, chunk
            else:
                progress.advance(tensor.name, chunk_weights(tensor, chunk))


def _stream_start(tensor: PlannedTensor, shard_size: int) -> int:
    """Return the offset of a tensor in the concatenation of all shards, in bytes."""
    first = tensor.spans[0]
    return first.shard_index * shard_size + first.offset


def _check_place(tensor: PlannedTensor, expected: int, offset: int) -> None:
    if offset != expected:
        raise ConversionError(
            "the tensor would be written at another position than planned",
            where=tensor.name,
            expected=f"byte {expected} of the concatenated shards",
            found=f"byte {offset}",
        )
