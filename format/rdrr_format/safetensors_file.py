"""The header of a safetensors file, which describes every byte of the file exactly once.

The header is parsed here rather than by the safetensors library, because the library has no NumPy
type for BF16 and its errors name neither file nor tensor. The format is 8 bytes of little-endian
header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data; offsets count from
the end of the header. The format also demands that the data has no gaps or overlaps, that the file
ends with the last tensor, and that no key occurs twice. Files that violate this are refused.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from rdrr_format.bounded_json import JsonBounds, parse_json, unique_pairs
from rdrr_format.errors import FormatError
from rdrr_format.regular_files import open_regular

HEADER = JsonBounds(size=100_000_000, values=1 << 21, depth=4, digits=20)
"""Limits of a header: the size is that of the safetensors library, and the number of values is
enough for some 200,000 tensors in one file."""

_AGAIN = "download it again, or write it again"

MAX_DIMENSIONS = 64
MAX_NAME = 4096

NUMPY = {
    "F64": "<f8", "I64": "<i8", "U64": "<u8", "F32": "<f4", "I32": "<i4", "U32": "<u4",
    "F16": "<f2", "BF16": "<u2", "I16": "<i2", "U16": "<u2", "I8": "i1", "U8": "u1",
    "BOOL": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
"""NumPy types of the mapped values; types that NumPy lacks are mapped as unsigned integers."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor that a header describes.

    Attributes:
        name: Its name.
        dtype: Its type in the words of the format, a key of `NUMPY`.
        shape: Its shape.
        offset: Position of its first byte in the file.
        size: Its size in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """The header of a file.

    Attributes:
        metadata: The texts of `__metadata__`.
        tensors: The tensors in the order of their bytes.
    """

    metadata: Mapping[str, str]
    tensors: Sequence[TensorEntry]


def read_header(
    path: Path, fetch: Callable[[Path, int, int], None] = lambda _path, _offset, _size: None
) -> SafetensorsHeader:
    """Read and check the header of a file.

    Args:
        path: The file.
        fetch: Called with the file, a position and a number of bytes before they are read.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
        FormatError: The header is damaged, or does not describe every byte of the file exactly
            once.
    """
    fetch(path, 0, 8)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > HEADER.size or 8 + length > size:
            raise FormatError(
                "truncated, or not a safetensors file",
                where=path,
                expected=f"a header of {length} bytes" if size >= 8 else "at least 8 bytes",
                found=f"a file of {size} bytes",
                hint=_AGAIN,
            )
        fetch(path, 8, length)
        values = _parsed(file.read(length), path)
    metadata = values.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise FormatError("damaged header: __metadata__", where=path, expected="strings by name")
    entries = [_entry(path, name, value, 8 + length) for name, value in values.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.size))
    _check_spans(path, entries, 8 + length, size)
    return SafetensorsHeader(metadata, entries)


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    try:
        header = parse_json(text, HEADER, pairs=unique_pairs, constants=False)
    except FormatError as error:
        raise FormatError(
            error.message,
            where=f"{path}, header",
            expected=error.expected,
            found=error.found,
        ) from error
    if not isinstance(header, dict) or text.startswith(BOM_UTF8):
        raise FormatError("the header is not a JSON object", where=path)
    return header


def _entry(path: Path, name: str, value: Any, start: int) -> TensorEntry:
    where = f"{path}, tensor {name}"
    if len(name) > MAX_NAME:
        raise FormatError(
            "a tensor's name is too long",
            where=where,
            expected=f"at most {MAX_NAME} characters",
            found=len(name),
        )
    if not isinstance(value, dict):
        raise FormatError("the header's entry is not an object", where=where)
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise FormatError(
            "the header's entry is damaged", where=where, expected="shape and two data_offsets"
        )
    if not isinstance(dtype, str) or dtype not in NUMPY:
        raise FormatError("unknown dtype", where=where, expected=", ".join(NUMPY), found=dtype)
    if not is_shape(shape):
        raise FormatError(
            "impossible shape", where=where, expected=f"at most {MAX_DIMENSIONS} sizes", found=shape
        )
    begin, end = offsets
    size = prod(shape) * np.dtype(NUMPY[dtype]).itemsize
    if end - begin != size:
        raise FormatError(
            "shape and offsets disagree",
            where=where,
            expected=f"{size} bytes",
            found=f"{end - begin} bytes",
        )
    return TensorEntry(name, dtype, tuple(shape), start + begin, size)


def is_shape(value: Any) -> bool:
    """Return whether a value can be the shape of a tensor."""
    is_short = isinstance(value, (list, tuple)) and len(value) <= MAX_DIMENSIONS
    return is_short and _are_sizes(list(value)) and prod(max(1, n) for n in value) < 1 << 60


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_spans(path: Path, entries: Sequence[TensorEntry], start: int, size: int) -> None:
    """Check that tensors follow each other without gaps, and that the last ends with the file."""
    at = start
    for entry in entries:
        where = f"{path}, tensor {entry.name}"
        end = entry.offset + entry.size
        if end > size:
            raise FormatError(
                "the file is truncated",
                where=where,
                expected=f"at least {end - start} bytes of data",
                found=f"{size - start} bytes",
                hint=_AGAIN,
            )
        if entry.offset != at:
            raise FormatError(
                "overlaps the tensor before it"
                if entry.offset < at
                else "there are bytes before it that belong to no tensor",
                where=where,
                expected=f"data from byte {at - start}",
                found=f"from byte {entry.offset - start}",
            )
        at = end
    if at != size:
        raise FormatError(
            "there are bytes at the end of the file that belong to no tensor",
            where=path,
            expected=f"{at - start} bytes of data",
            found=f"{size - start} bytes",
        )
