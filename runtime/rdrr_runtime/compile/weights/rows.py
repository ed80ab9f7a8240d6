"""The rows of a package's tensors in the type and layout in which GPU memory keeps them.

Rows are read, decoded or transposed a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS
from rdrr_format.codecs.f16 import f16_overflow_count
from rdrr_format.dtypes import DType
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_manifests.graph.ops import WeightUse
from rdrr_manifests.models import Tensor
from rdrr_manifests.package import Package

from rdrr_runtime.compile.choice.storage import Storage
from rdrr_runtime.compile.weights.padding import is_padded, padded_matrix
from rdrr_runtime.compile.weights.read_ahead import Read
from rdrr_runtime.phases.weights.formats import UNIT

CHUNK_BYTES = 16 << 20
"""Bytes read or decoded at a time, so that loading does not double host memory."""

Bytes = npt.NDArray[np.uint8]


def is_kept_as_stored(package: Package, use: WeightUse, storage: Storage) -> bool:
    """Return whether a tensor is neither decoded, padded nor transposed when it is loaded."""
    tensor = package.tensor(use.name)
    is_turned = tensor.parsed_layout() is Layout.COLUMN and storage.layout is Layout.ROW
    return not (is_padded(package, use) or tensor.parsed_dtype() != storage.dtype or is_turned)


def reads_as_stored(package: Package, use: WeightUse, storage: Storage) -> list[Read]:
    """Return functions that read the rows of a tensor which is kept as it is stored.

    There are none if the tensor is decoded or transposed: then `changed_rows` reads it.
    """
    if not is_kept_as_stored(package, use, storage):
        return []
    return _reads(package, use.name, package.tensor(use.name), CHUNK_BYTES)


def changed_rows(package: Package, use: WeightUse, storage: Storage) -> Iterator[Bytes]:
    """Yield the rows of a tensor that is kept in another type or layout than it is stored in."""
    if is_padded(package, use):
        return _encoded(padded_matrix(package, use), storage.dtype, use.name)
    tensor = package.tensor(use.name)
    dtype, layout = tensor.parsed_dtype(), tensor.parsed_layout()
    if dtype == storage.dtype:
        rows = _stored_rows(package, use.name, tensor)
    elif layout is Layout.FLAT:
        rows = _encoded(_flat_values(package, use, dtype), storage.dtype, use.name)
    else:
        rows = _encoded(_row_values(package, use.name, tensor), storage.dtype, use.name)
    if layout is Layout.COLUMN and storage.layout is Layout.ROW:
        return _transposed(rows, storage.dtype, use.shape)
    return rows


def _transposed(
    columns: Iterator[Bytes], dtype: DType, shape: tuple[int, ...], limit: int = CHUNK_BYTES
) -> Iterator[Bytes]:
    """Yield rows of K scalars from columns of N; the whole matrix is held in host memory."""
    n, k = shape
    rows_of_k = np.empty((n, k), f"V{dtype.block_bytes}")
    at = 0
    for some in columns:
        values = some.reshape(len(some), -1).view(rows_of_k.dtype)
        rows_of_k[:, at : at + len(values)] = values[:, :n].T
        at += len(values)
    rows = rows_of_k.view(np.uint8)
    step = max(1, limit // max(rows.shape[1], 1))
    for first in range(0, n, step):
        yield rows[first : first + step]


def _stored_rows(
    package: Package, name: str, tensor: Tensor, limit: int = CHUNK_BYTES
) -> Iterator[Bytes]:
    return (read() for read in _reads(package, name, tensor, limit))


def _reads(package: Package, name: str, tensor: Tensor, limit: int) -> list[Read]:
    """Return functions that read the stored rows of a tensor, some after the other."""
    stored = tensor.geometry()
    if tensor.parsed_layout() is Layout.FLAT:
        return [partial(package.read, name)]
    step = max(1, limit // max(stored.row_bytes, 1))
    step = step // UNIT * UNIT or step  # columns of blocks are repacked by as many
    return [
        partial(package.read_rows, name, first, min(step, stored.rows - first))
        for first in range(0, stored.rows, step)
    ]


def _row_values(package: Package, name: str, tensor: Tensor) -> Iterator[npt.NDArray[np.float32]]:
    """Yield decoded rows of a layout whose rows begin with a block, f32 [rows, elements]."""
    elements = tensor.geometry().row_elements
    # Decoding to f32 enlarges a block type up to eightfold.
    for rows in _stored_rows(package, name, tensor, CHUNK_BYTES // 8):
        yield CODECS[tensor.parsed_dtype().name].dequantize(rows, elements)


def _flat_values(
    package: Package, use: WeightUse, dtype: DType
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield decoded rows of a flat layout, whose blocks may cross rows, f32 [rows, K]."""
    n, k = use.shape
    blocks = package.read(use.name).reshape(-1, dtype.block_bytes)
    whole = dtype.block_elements // gcd(dtype.block_elements, k)  # rows that end with a block
    step = max(1, CHUNK_BYTES // (4 * k * whole)) * whole
    for first in range(0, n, step):
        rows = min(step, n - first)
        start = first * k // dtype.block_elements
        end = -(-(first + rows) * k // dtype.block_elements)
        values = CODECS[dtype.name].dequantize(blocks[start:end], dtype.block_elements)
        yield values.reshape(-1)[: rows * k].reshape(rows, k)


def _encoded(values: Iterator[npt.NDArray[np.float32]], dtype: DType, name: str) -> Iterator[Bytes]:
    for rows in values:
        if dtype.name == "F16" and f16_overflow_count(rows):
            raise FormatError(
                "the tensor has values that are too large for F16",
                where=name,
                hint="use `kernel_hints` q4kMatmul=dequant_f32",
            )
        yield CODECS[dtype.name].quantize(rows)
