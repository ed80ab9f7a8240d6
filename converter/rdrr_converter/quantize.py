"""Chunks of planned tensors encoded by an engine, handed on in storage order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS

from rdrr_converter.engines import Engine
from rdrr_converter.plan import PlannedTensor
from rdrr_converter.transforms import Chunk, read_chunk, stored_rows

Bytes = npt.NDArray[np.uint8]
Work = tuple[PlannedTensor, Chunk]


def encode_chunk(work: Work) -> Bytes:
    """The stored bytes of a chunk."""
    tensor, chunk = work
    if tensor.is_copied:
        blocks = stored_rows(tensor.sources, chunk.first, chunk.first + chunk.count)
        return np.ascontiguousarray(blocks).reshape(-1)
    rows = read_chunk(tensor, chunk)
    blocks = CODECS[tensor.dtype.name].quantize(rows, quality=tensor.quality)
    return np.ascontiguousarray(blocks).reshape(-1)


def encoded(work: Iterable[Work], engine: Engine) -> Iterator[tuple[Work, Bytes]]:
    """Chunks with their stored bytes, in their order."""
    return engine.map(encode_chunk, work)
