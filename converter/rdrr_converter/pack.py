"""Writing planned tensors into shards, exactly where the plan says."""

from __future__ import annotations

from rdrr_format.errors import ConversionError
from rdrr_format.shards import ShardInfo, ShardSpan, ShardWriter
from rdrr_format.stores import Store

from rdrr_converter.options import Options
from rdrr_converter.plan import Plan, PlannedTensor
from rdrr_converter.quantize import encoded
from rdrr_converter.report import Progress
from rdrr_converter.transforms import chunk_weights


def write_shards(
    plan: Plan, store: Store, options: Options, workers: int, progress: Progress
) -> tuple[ShardInfo, ...]:
    """Encode and write every tensor.

    Returns:
        The finished shards with their hashes.

    Raises:
        StoreError: The disk is full, or the store refuses.
        SourceError: A source file cannot be read any more.
    """
    progress.start("write", sum(tensor.weights for tensor in plan.tensors))
    writer = ShardWriter(store, options.shard_size, options.hash_algorithm)
    written: dict[str, list[ShardSpan]] = {tensor.name: [] for tensor in plan.tensors}
    try:
        for tensor, chunk, data in encoded(plan.tensors, workers):
            if not written[tensor.name]:
                writer.align(options.align)
            written[tensor.name] += writer.write(data.data)
            progress.advance(tensor.name, chunk_weights(tensor, chunk))
        shards = writer.close()
    finally:
        writer.abort()
    for tensor in plan.tensors:
        _check_place(tensor, written[tensor.name])
    return shards


def _check_place(tensor: PlannedTensor, written: list[ShardSpan]) -> None:
    first = written[0] if written else None
    if first is None or (first.shard_index, first.offset) != (
        tensor.spans[0].shard_index,
        tensor.spans[0].offset,
    ):
        raise ConversionError(
            "written elsewhere than planned",
            where=tensor.name,
            expected=tensor.spans[0],
            found=first,
        )
    size = sum(span.size for span in written)
    if size != tensor.size:
        raise ConversionError(
            "written with another size than planned",
            where=tensor.name,
            expected=tensor.size,
            found=size,
        )
