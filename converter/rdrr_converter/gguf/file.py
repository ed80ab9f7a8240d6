"""The GGUF container: reads and checks the metadata and the table of tensors.

    "GGUF"  u32 version  u64 tensors  u64 entries
    entry   string key, u32 type, value             string = u64 length, UTF-8
    tensor  string name, u32 n, n x u64 dimensions, u32 type, u64 offset
    zeros up to a multiple of the alignment, then the data; offsets count from its start

The file is little endian, and no two tensors share bytes. The header has bounds (`MAX_...`), each
several times what published models need, because every value becomes an object in memory.
Dimensions are written fastest first, so shapes here are in reverse order. This module knows only
the container, not what names and metadata keys mean. It does not use gguf-py, which makes an object
of every string of a vocabulary and reads past the end of a truncated file without an error.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import SourceError
from rdrr_format.regular_files import open_regular
from rdrr_format.shards import align_up

from rdrr_converter.checkpoint.pointers import pointer_hint_of
from rdrr_converter.checkpoint.sparse_files import ensure_fetched
from rdrr_converter.gguf.block_types import DECODE_ONLY_TYPES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME = 256
MAX_HEADER = 256 << 20
"""Largest size in bytes of everything before the data."""

MAX_ENTRIES = 1 << 16
"""Largest number of metadata entries."""

MAX_ARRAY_ELEMENTS = 1 << 22
"""Largest number of array elements in the metadata; a vocabulary has up to four per token."""

MAX_TENSORS = 1 << 17
READ_AHEAD = 1 << 20
"""Bytes of the header to fetch at a time from a remote file."""

_SCALARS: Mapping[int, str] = MappingProxyType(
    {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
     7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
)  # fmt: skip
_STRING, _ARRAY = 8, 9

TENSOR_TYPES: Mapping[int, str] = MappingProxyType(
    {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
     10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
     17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
     23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
     30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}
)  # fmt: skip
"""Storage types by ggml's numbers."""

FILE_TYPES: Mapping[str, int] = MappingProxyType(
    {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 15,
     "Q5_K": 17, "Q6_K": 18, "BF16": 32, "MXFP4": 38}
)  # fmt: skip
"""Values of `general.file_type`, by the type of most of the weights."""

READABLE = tuple(
    name for name in TENSOR_TYPES.values() if name in CODECS or name in DECODE_ONLY_TYPES
)


@dataclass(frozen=True)
class GgufTensor:
    """An entry of the table of tensors.

    Attributes:
        name: Name in the file.
        shape: Dimensions, slowest first.
        dtype: One of `READABLE`.
        path: The file.
        offset: First byte of the data in the file.
        size: Bytes of the data.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    offset: int
    size: int


@dataclass(frozen=True)
class GgufFile:
    """The header of a GGUF file.

    Attributes:
        path: The file.
        metadata: Numbers, booleans, strings and lists of them. A float32 is given as the shortest
            decimal number that rounds to it.
        tensors: Tensors by name, in the order of the table.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file.

    Raises:
        SourceError: The file is not a GGUF file of a known version, is damaged or truncated, or has
            a tensor of a type that cannot be read.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size < 24:
                raise SourceError("truncated, or not a GGUF file", where=path)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(path, data).file()
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error


class _Parser:
    """Reads a mapped file from its start, and refuses to read beyond its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0
        self._fetched = 0
        self._array_elements = 0

    def file(self) -> GgufFile:
        tensors, entries = self._read_counts()
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._name()
            if key in metadata:
                raise SourceError("a key occurs twice", where=self._path, found=key)
            metadata[key] = self._value(self._number("<I"), key)
        rows = [self._tensor() for _ in range(tensors)]
        start = align_up(self._at, self._alignment(metadata))
        table: dict[str, GgufTensor] = {}
        for name, shape, number, offset in rows:
            if name in table:
                raise SourceError("a tensor occurs twice", where=self._path, found=name)
            table[name] = self._table_entry(name, shape, number, start + offset)
        self._check_overlaps(table.values())
        return GgufFile(self._path, metadata, table)

    def _read_counts(self) -> tuple[int, int]:
        magic = self._read(4)
        if magic != MAGIC:
            raise SourceError(
                "not a GGUF file",
                where=self._path,
                expected=repr(MAGIC),
                found=repr(magic),
                hint=pointer_hint_of(self._path),
            )
        version = self._number("<I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            raise SourceError(
                "the GGUF file has the wrong byte order" if swapped else "unknown version of GGUF",
                where=self._path,
                expected="little endian" if swapped else " or ".join(map(str, VERSIONS)),
                found="big endian" if swapped else version,
            )
        tensors = self._check_maximum(self._number("<Q"), MAX_TENSORS, "tensors")
        return tensors, self._check_maximum(self._number("<Q"), MAX_ENTRIES, "entries of metadata")

    def _check_maximum(self, count: int, maximum: int, what: str) -> int:
        if count > maximum:
            raise SourceError(
                f"too many {what}", where=self._path, expected=f"at most {maximum}", found=count
            )
        return count

    def _read(self, size: int) -> bytes:
        end = self._check_maximum(self._at + size, MAX_HEADER, "bytes before the data")
        if end > self._fetched:
            self._fetch_to(end)
        if end > len(self._data):
            raise SourceError(
                "truncated GGUF file",
                where=self._path,
                expected=f"at least {end} bytes",
                found=f"{len(self._data)} bytes",
                hint="download it again",
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _fetch_to(self, end: int) -> None:
        """Fetch a remote file up to `end` and beyond, because values are small and many."""
        self._fetched = max(end, self._fetched + READ_AHEAD)
        ensure_fetched(self._path, 0, self._fetched)

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._read(struct.calcsize(form)))[0]
        return value

    def _string(self) -> str:
        # Tokens need not be valid UTF-8; replacing invalid bytes keeps the ids of the others.
        return self._read(self._number("<Q")).decode("utf-8", errors="replace")

    def _name(self) -> str:
        """Read a key or the name of a tensor, short enough to be shown in messages."""
        name = self._string()
        if len(name) > MAX_NAME or not name.isprintable():
            raise SourceError(
                "the GGUF file is damaged",
                where=self._path,
                expected=f"a name of at most {MAX_NAME} characters",
                found=ascii(name[:40]),
            )
        return name

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalars(kind, 1)[0]
        if kind != _ARRAY:
            raise SourceError(
                "a metadata value has an unknown type", where=f"{self._path}, {key}", found=kind
            )
        kind, count = self._number("<I"), self._number("<Q")
        self._array_elements = self._check_maximum(
            self._array_elements + count, MAX_ARRAY_ELEMENTS, "array elements in the metadata"
        )
        if kind in _SCALARS:
            return self._scalars(kind, count)
        if kind != _STRING:
            raise SourceError(
                "a metadata array has an unknown type", where=f"{self._path}, {key}", found=kind
            )
        return [self._string() for _ in range(count)]

    def _scalars(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(_SCALARS[kind])
        values = np.frombuffer(self._read(count * dtype.itemsize), dtype)
        if dtype == np.float32:
            # The float32 of 1e-5 is 9.99999974e-06 as a float64; str() brings 1e-5 back.
            return [float(str(value)) for value in values]
        listed: list[Any] = values.tolist()
        return listed

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, count = self._name(), self._number("<I")
        if count > MAX_DIMENSIONS:
            raise SourceError(
                "too many dimensions",
                where=f"{self._path}, tensor {name}",
                expected=f"at most {MAX_DIMENSIONS}",
                found=count,
            )
        shape = tuple(self._number("<Q") for _ in range(count))[::-1]
        return name, shape, self._number("<I"), self._number("<Q")

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise SourceError(
                "impossible alignment",
                where=f"{self._path}, general.alignment",
                expected="a power of two",
                found=alignment,
            )
        return alignment

    def _table_entry(
        self, name: str, shape: tuple[int, ...], number: int, offset: int
    ) -> GgufTensor:
        where = f"{self._path}, tensor {name}"
        dtype = TENSOR_TYPES.get(number, f"type {number}")
        if dtype not in READABLE:
            raise SourceError(
                "weights of this type cannot be read",
                where=where,
                expected=", ".join(READABLE),
                found=dtype,
                hint="convert a GGUF of one of these types",
            )
        elements, block_bytes = _block(dtype)
        if prod(max(1, length) for length in shape) >= 1 << 60:
            raise SourceError("impossible shape", where=where, found=list(shape))
        if shape and shape[-1] % elements:
            raise SourceError(
                f"the row length is not a multiple of the {dtype} block size",
                where=where,
                expected=f"a multiple of {elements}",
                found=shape[-1],
            )
        size = prod(shape) // elements * block_bytes
        if offset + size > len(self._data):
            raise SourceError(
                "truncated GGUF file",
                where=where,
                expected=f"at least {offset + size} bytes",
                found=f"{len(self._data)} bytes",
                hint="download it again",
            )
        return GgufTensor(name, shape, dtype, self._path, offset, size)

    def _check_overlaps(self, tensors: Iterable[GgufTensor]) -> None:
        """Refuse tensors whose bytes overlap."""
        placed = sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size))
        for before, after in pairwise(placed):
            if after.offset < before.offset + before.size:
                raise SourceError(
                    f"overlaps tensor {before.name}",
                    where=f"{self._path}, tensor {after.name}",
                    expected=f"bytes from {before.offset + before.size} on",
                    found=f"from {after.offset} on",
                )


def _block(dtype: str) -> tuple[int, int]:
    """Return the number of values and of bytes in a block; a scalar is a block of one."""
    if dtype in DECODE_ONLY_TYPES:
        return DECODE_ONLY_TYPES[dtype].elements, DECODE_ONLY_TYPES[dtype].size
    return DTYPES[dtype].block_elements, DTYPES[dtype].block_bytes
