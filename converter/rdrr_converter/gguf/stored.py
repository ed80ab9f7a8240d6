"""The stored tensors of a GGUF file as lazy tensors of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import SourceError
from rdrr_format.regular_files import map_regular

from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.checkpoint.sparse_files import ensure_fetched
from rdrr_converter.gguf.block_types import DECODE_ONLY_TYPES, BlockDecoder
from rdrr_converter.gguf.file import GgufTensor


def read_tensor(tensor: GgufTensor, name: str) -> SourceTensor:
    """Return a tensor under a name, with the values and the order of the file."""
    native = partial(map_tensor, tensor)
    return SourceTensor(name, tensor.shape, tensor.dtype, str(tensor.path), native)


def map_tensor(tensor: GgufTensor) -> npt.NDArray[Any]:
    """Map the stored values as a matrix; blocks as bytes."""
    scalar = DTYPES[tensor.dtype].numpy if tensor.dtype in DTYPES else None
    rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1] if tensor.shape else 1
    if scalar is None:
        columns = tensor.size // max(1, rows)
    kind = np.uint8 if scalar is None else np.dtype(scalar)
    if not rows * columns:
        return np.empty((rows, columns), kind)
    ensure_fetched(tensor.path, tensor.offset, tensor.size)
    try:
        return map_regular(tensor.path, kind, tensor.offset, (rows, columns))
    except (OSError, ValueError) as error:
        raise SourceError("the file cannot be mapped", where=tensor.path, found=error) from error


def decoded(read: SourceTensor) -> SourceTensor:
    """Return a tensor whose block type no package has as one that is decoded when it is read."""
    kind = DECODE_ONLY_TYPES.get(read.dtype)
    if kind is None:
        return read
    return replace(read, interleaved=0, offset=0.0, decode=BlockDecoder(read, kind))
