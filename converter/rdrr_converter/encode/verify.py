"""Verification of a written package: the shards are read back and compared with the source.

The shards are read with the ordinary reader, so that a bad disk, a quantizer that disagrees with
its dequantizer and a misplaced tensor are all found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import isfinite

from rdrr_format.codecs import CODECS
from rdrr_format.errors import ConversionError
from rdrr_format.layouts import Layout
from rdrr_format.shard_reader import ShardReader
from rdrr_format.shards import ShardInfo
from rdrr_format.stores import Store

from rdrr_converter.checkpoint.source import F32Array
from rdrr_converter.encode.chunks import (
    CHUNK_WEIGHTS,
    Chunk,
    byte_range,
    chunk_weights,
    chunks,
    read_chunk,
)
from rdrr_converter.encode.measure import ErrorMeter, ErrorStats
from rdrr_converter.engines import open_engine
from rdrr_converter.plan import ConversionPlan, PlannedTensor
from rdrr_converter.progress import Progress


def verify(
    plan: ConversionPlan,
    store: Store,
    shards: Sequence[ShardInfo],
    algorithm: str,
    workers: int,
    progress: Progress,
) -> dict[str, ErrorStats]:
    """Check every shard's hash and compare every tensor with its source.

    Returns:
        The error of each tensor, by its name.

    Raises:
        ShardError: A shard on disk has another size or hash than the written one.
        ConversionError: A tensor on disk does not hold the values of the source.
    """
    reader = ShardReader(store, shards, algorithm)
    progress.start("verify", sum(tensor.weights for tensor in plan.tensors))
    errors: dict[str, ErrorStats] = {}
    with open_engine("threads", workers) as engine:
        for _ in engine.map(reader.verify, range(len(shards))):
            pass
        # The unit of work is a chunk, because with whole tensors one thread would still measure
        # the large output head while the others are idle.
        work = ((tensor, chunk) for tensor in plan.tensors for chunk in chunks(tensor))
        parts = (part for _, part in engine.map(partial(_measure, reader), work))
        for tensor in plan.tensors:
            error = _sum(tensor, parts, progress)
            rmse = error.relative_rmse
            if not isfinite(rmse) or (not tensor.dtype.is_block and rmse > _rounding(tensor)):
                raise ConversionError(
                    "what was written to disk differs from the source",
                    where=tensor.name,
                    expected=f"the values of the source as {tensor.dtype}",
                    found=f"relative error {rmse:.3g}",
                )
            errors[tensor.name] = error
    return errors


def _measure(reader: ShardReader, work: tuple[PlannedTensor, Chunk]) -> ErrorMeter:
    """Compare a chunk on disk with its source."""
    tensor, chunk = work
    meter = ErrorMeter(tensor)
    source = read_chunk(tensor, chunk)
    for part, rows in _parts(tensor, chunk):
        meter.add(part, source[rows], _decode(tensor, part, reader))
    return meter


def _parts(tensor: PlannedTensor, chunk: Chunk) -> Iterator[tuple[Chunk, slice]]:
    """Split a chunk into parts that are small in every layout, with their rows within the chunk.

    A chunk of the column layout has many columns and may take tens of megabytes; decoding it in
    one piece would double that.
    """
    if tensor.layout is Layout.FLAT:
        yield chunk, slice(None)
        return
    step = max(1, CHUNK_WEIGHTS // max(1, tensor.geometry.row_elements))
    for first in range(0, chunk.count, step):
        rows = slice(first, min(first + step, chunk.count))
        yield Chunk(chunk.first + first, rows.stop - first), rows


def _sum(tensor: PlannedTensor, parts: Iterator[ErrorMeter], progress: Progress) -> ErrorStats:
    """Combine the next meters of `parts`, which are those of the tensor's chunks."""
    whole = ErrorMeter(tensor)
    for chunk, part in zip(chunks(tensor), parts, strict=False):
        whole.merge(part)
        progress.advance(tensor.name, chunk_weights(tensor, chunk))
    return whole.result()


def _decode(tensor: PlannedTensor, chunk: Chunk, reader: ShardReader) -> F32Array:
    start, size = byte_range(tensor, chunk)
    raw = reader.read_range(tensor.spans, start, size)
    flat = tensor.layout is Layout.FLAT
    rows, elements = (1, chunk.count) if flat else (chunk.count, tensor.geometry.row_elements)
    return CODECS[tensor.dtype.name].dequantize(raw.reshape(rows, -1), elements)


def _rounding(tensor: PlannedTensor) -> float:
    """Return the largest relative error that rounding to a scalar type can cause.

    It is larger than half a unit in the last place, because subnormal float16 values lose more.
    """
    return 0.0 if tensor.dtype.name == "F32" else 2.0**-8
