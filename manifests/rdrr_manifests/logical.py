"""The tensors of a package in logical form, independent of how they are stored.

Tensors have canonical names, a fused gate and up projection is split in two, and rows are logical
rows (outputs). Packages are compared and checkpoints are exported in this form. Tensors are read a
few rows at a time. This module only reads, and does not depend on the architecture.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import DType
from rdrr_format.encoding import codec_of
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_manifests.graph.names import GATE_UP, PAIRS, PREFIXES, TensorNames
from rdrr_manifests.models import Tensor
from rdrr_manifests.package import Package

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CHUNK_WEIGHTS = 1 << 20
"""Approximate number of weights that are read at a time."""

_ALIGNMENT = 256
"""Rows are read in multiples of this, so that no block of the column layout is decoded twice."""

_FUSED = re.compile(rf"(?P<stem>.*\.){GATE_UP}(?P<ending>\.\w+)")


@dataclass(frozen=True)
class LogicalTensor:
    """One tensor of the model in logical form.

    Attributes:
        name: Canonical name.
        shape: Logical shape.
        role: Role in the manifest.
        stored: Name of the stored tensor that contains it.
        entry: The manifest's entry of the stored tensor.
        first: First logical row within the stored tensor; above 0 for the second half of a fused
            projection.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    stored: str
    entry: Tensor
    first: int = 0

    @property
    def rows(self) -> int:
        """Rows of the matrix view: all dimensions but the last."""
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Columns of the matrix view: the last dimension."""
        return self.shape[-1] if self.shape else 1

    @property
    def dtype(self) -> DType:
        """Storage type."""
        return self.entry.parsed_dtype()

    @property
    def layout(self) -> Layout:
        """Storage layout."""
        return self.entry.parsed_layout()

    @property
    def has_stored_rows(self) -> bool:
        """Whether each row consists of whole blocks, so that it can be read without decoding."""
        if not self.dtype.is_block:
            return True
        whole = self.columns % self.dtype.block_elements == 0
        return self.layout is Layout.ROW or (self.layout is Layout.FLAT and whole)


def logical_tensors(package: Package) -> tuple[LogicalTensor, ...]:
    """Return all tensors of a package in logical form, in the order of the manifest."""
    names = TensorNames(package.manifest.tensors)
    tensors: list[LogicalTensor] = []
    for stored, entry in package.manifest.tensors.items():
        name = _canonical(stored, names)
        match = _FUSED.fullmatch(name)
        if match is None or not entry.shape or entry.shape[0] % 2:
            tensors.append(LogicalTensor(name, entry.shape, entry.role, stored, entry))
            continue
        half = entry.shape[0] // 2, *entry.shape[1:]
        gate, up = halves_of(stored, package.manifest.tensors)
        for part, first in ((gate, 0), (up, half[0])):
            half_name = f"{match['stem']}{part}{match['ending']}"
            tensors.append(LogicalTensor(half_name, half, entry.role, stored, entry, first))
    return tuple(tensors)


def halves_of(fused: str, names: Container[str]) -> tuple[str, str]:
    """Return the names of gate and up that a fused tensor replaces, without their stem.

    Args:
        fused: Name of the fused tensor.
        names: Names of all tensors, of which the down projection beside it decides.
    """
    beside = (pair for pair in PAIRS if fused.replace(GATE_UP, pair[2]) in names)
    gate, up, _ = next(beside, PAIRS[0])
    return gate, up


def _canonical(name: str, names: TensorNames) -> str:
    if name == names.head():
        return HEAD
    if names.prefix and name.startswith(names.prefix):
        return PREFIXES[0] + name.removeprefix(names.prefix)
    return name if names.prefix else PREFIXES[0] + name


class RowReader:
    """A reader of the logical rows of one tensor.

    Args:
        package: The package that contains the tensor.
        tensor: The tensor.
    """

    def __init__(self, package: Package, tensor: LogicalTensor) -> None:
        self._package, self._tensor = package, tensor
        self._dtype, self._layout = tensor.dtype, tensor.layout
        self._geometry = tensor.entry.geometry()

    @cached_property
    def _raw(self) -> Bytes:
        """All bytes of the stored tensor; memory-mapped unless it spans several shards."""
        return self._package.read(self._tensor.stored)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield the first row and the number of rows of chunks of about `CHUNK_WEIGHTS` weights."""
        tensor = self._tensor
        step = CHUNK_WEIGHTS // max(1, tensor.columns) // _ALIGNMENT * _ALIGNMENT
        step = max(_ALIGNMENT, step)
        for first in range(0, tensor.rows, step):
            yield first, min(step, tensor.rows - first)

    def values(self, first: int, count: int) -> F32Array:
        """Return decoded rows, float32 [count, columns].

        Raises:
            FormatError: The storage type has no codec, or the bytes do not follow the format.
            ShardError: A shard is missing or too short.
        """
        first += self._tensor.first
        if self._layout is Layout.COLUMN:
            return self._from_columns(first, count)
        if self._layout is Layout.FLAT:
            return self._from_flat(first, count)
        raw = self._package.read_rows(self._tensor.stored, first, count)
        return codec_of(self._dtype).dequantize(raw, self._tensor.columns)

    def stored(self, first: int, count: int) -> Bytes:
        """Return rows in the form that the row-major layout stores, uint8 [count, row bytes].

        Raises:
            FormatError: Rows do not consist of whole blocks (see `LogicalTensor.has_stored_rows`).
            ShardError: A shard is missing or too short.
        """
        tensor, dtype = self._tensor, self._dtype
        if not tensor.has_stored_rows:
            raise FormatError(
                "a block of the tensor contains parts of several rows",
                where=tensor.stored,
                found=self._layout,
            )
        first += tensor.first
        if self._layout is Layout.ROW:
            return self._package.read_rows(tensor.stored, first, count)
        if self._layout is Layout.COLUMN:
            size = dtype.block_bytes
            matrix = self._raw.reshape(self._geometry.rows, -1, size)
            part = np.ascontiguousarray(matrix[:, first : first + count].swapaxes(0, 1))
            return part.reshape(count, -1)
        row_bytes = tensor.columns // dtype.block_elements * dtype.block_bytes
        return self._raw[first * row_bytes : (first + count) * row_bytes].reshape(count, -1)

    def stored_blocks(self, first: int, count: int) -> Bytes:
        """Return the stored blocks that hold these rows, uint8; at the ends they may hold others.

        Raises:
            ShardError: A shard is missing or too short.
        """
        first += self._tensor.first
        if self._layout is Layout.ROW:
            return self._package.read_rows(self._tensor.stored, first, count)
        if self._layout is Layout.COLUMN:
            return self._column_blocks(first, count)
        return self._flat_blocks(first, count)

    def _column_blocks(self, first: int, count: int) -> Bytes:
        size, width = self._dtype.block_bytes, self._dtype.block_elements
        low, high = first // width, -(-(first + count) // width)
        matrix = self._raw.reshape(self._geometry.rows, self._geometry.row_bytes)
        return np.ascontiguousarray(matrix[:, low * size : high * size])

    def _flat_blocks(self, first: int, count: int) -> Bytes:
        size, width = self._dtype.block_bytes, self._dtype.block_elements
        low = first * self._tensor.columns // width
        high = -(-(first + count) * self._tensor.columns // width)
        return self._raw[low * size : high * size].reshape(1, -1)

    def _from_columns(self, first: int, count: int) -> F32Array:
        width = self._dtype.block_elements
        # Decoding starts and ends with whole blocks, which hold rows before and after these.
        start, end = first % width, first + count
        end = min(-(-end // width) * width, self._geometry.row_elements)
        blocks = self._column_blocks(first, count)
        values = codec_of(self._dtype).dequantize(blocks, end - (first - start))
        return np.ascontiguousarray(values[:, start : start + count].T)

    def _from_flat(self, first: int, count: int) -> F32Array:
        begin, end = first * self._tensor.columns, (first + count) * self._tensor.columns
        start = begin % self._dtype.block_elements
        blocks = self._flat_blocks(first, count)
        values = codec_of(self._dtype).dequantize(blocks, end - (begin - start))
        return values[0, start:].reshape(count, -1)
