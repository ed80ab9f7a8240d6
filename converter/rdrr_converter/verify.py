"""Re-reading what is on disk and comparing it with the source.

It reads the shards as any reader would, so it finds a bad disk, a codec that disagrees with its
own reader and a misplaced tensor alike.
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

from rdrr_converter.engines import open_engine
from rdrr_converter.measure import ErrorMeter, ErrorStats
from rdrr_converter.plan import ConversionPlan, PlannedTensor
from rdrr_converter.report import Progress
from rdrr_converter.sources.base import F32Array
from rdrr_converter.transforms import (
    CHUNK_WEIGHTS,
    Chunk,
    byte_range,
    chunk_weights,
    chunks,
    read_chunk,
)


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
        What each tensor lost, by name.

    Raises:
        ShardError: A shard on disk has another size or hash than was written.
        ConversionError: A tensor on disk does not hold the source's values.
    """
    reader = ShardReader(store, shards, algorithm)
    progress.start("verify", sum(tensor.weights for tensor in plan.tensors))
    errors: dict[str, ErrorStats] = {}
    with open_engine("threads", workers) as engine:
        for _ in engine.map(reader.verify, range(len(shards))):
            pass
        # By chunks, since a head alone would keep one thread busy and the others idle.
        work = ((tensor, chunk) for tensor in plan.tensors for chunk in chunks(tensor))
        parts = (part for _, part in engine.map(partial(_measure, reader), work))
        for tensor in plan.tensors:
            error = _sum(tensor, parts, progress)
            rmse = error.relative_rmse
            if not isfinite(rmse) or (not tensor.dtype.is_block and rmse > _rounding(tensor)):
                raise ConversionError(
                    "what is on disk differs from the source",
                    where=tensor.name,
                    expected=f"{tensor.dtype} of the source",
                    found=f"relative error {rmse:.3g}",
                )
            errors[tensor.name] = error
    return errors


def _measure(reader: ShardReader, work: tuple[PlannedTensor, Chunk]) -> ErrorMeter:
    """Compare a chunk on disk with its source."""
    tensor, chunk = work
    meter = ErrorMeter(tensor)
    wanted = read_chunk(tensor, chunk)
    for part, rows in _parts(tensor, chunk):
        meter.add(part, wanted[rows], _decode(tensor, part, reader))
    return meter


def _parts(tensor: PlannedTensor, chunk: Chunk) -> Iterator[tuple[Chunk, slice]]:
    """A chunk in parts that are small in every layout, and their rows within the chunk.

    Columns are read many at a time, which may be tens of megabytes; decoding them so too would
    double that.
    """
    if tensor.layout is Layout.FLAT:
        yield chunk, slice(None)
        return
    step = max(1, CHUNK_WEIGHTS // max(1, tensor.geometry.row_elements))
    for first in range(0, chunk.count, step):
        rows = slice(first, min(first + step, chunk.count))
        yield Chunk(chunk.first + first, rows.stop - first), rows


def _sum(tensor: PlannedTensor, parts: Iterator[ErrorMeter], progress: Progress) -> ErrorStats:
    """What a tensor lost, of its chunks, which come next."""
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
    """Largest relative error that rounding to a scalar type explains.

    Values too small for float16 lose more than half a unit in the last place, hence its room.
    """
    return 0.0 if tensor.dtype.name == "F32" else 2.0**-8
