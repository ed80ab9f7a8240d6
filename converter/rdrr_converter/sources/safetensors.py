"""Read safetensors checkpoints: one file, or shards with an index. Files are mapped into memory.

The header is parsed here rather than by the safetensors library, because the library has no NumPy
type for BF16 and its errors name neither file nor tensor. The format is 8 bytes of little-endian
header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data; offsets count from
the end of the header. The format also demands that the data has no gaps or overlaps, that the file
ends with the last tensor, and that no key occurs twice. Files that violate this are refused.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from rdrr_format.bounded_json import JsonBounds, parse_json, unique_pairs
from rdrr_format.errors import FormatError, SourceError
from rdrr_format.regular_files import map_regular, open_regular

from rdrr_converter.checkpoint.pointers import pointer_hint_of
from rdrr_converter.checkpoint.source import SourceTensor, as_source_error
from rdrr_converter.checkpoint.sparse_files import ensure_fetched
from rdrr_converter.sources._directories import WeightFiles

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEADER = JsonBounds(size=100_000_000, values=1 << 21, depth=4, digits=20)
"""Limits of a header: the size is that of the safetensors library, and the number of values is
enough for some 200,000 tensors in one file."""

MAX_DIMENSIONS = 64
MAX_NAME = 4096

_NUMPY = {
    "F64": "<f8", "I64": "<i8", "U64": "<u8", "F32": "<f4", "I32": "<i4", "U32": "<u4",
    "F16": "<f2", "BF16": "<u2", "I16": "<i2", "U16": "<u2", "I8": "i1", "U8": "u1",
    "BOOL": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
"""NumPy types of the mapped values; types that NumPy lacks are mapped as unsigned integers."""


def read_file(path: Path) -> dict[str, SourceTensor]:
    """Read the tensors of one file, in the order of their bytes.

    Raises:
        SourceError: The header is damaged, or does not describe every byte of the file exactly
            once.
    """
    header, start, size = _read_header(path)
    _check_metadata(header.pop("__metadata__", {}), path)
    placed = sorted(
        (_tensor(path, name, entry, start) for name, entry in header.items()),
        key=itemgetter(0, 1),
    )
    _check_spans(path, placed, size - start)
    return {tensor.name: tensor for _, _, tensor in placed}


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return the header, the position of the first data byte, and the size of the file."""
    try:
        ensure_fetched(path, 0, 8)
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > HEADER.size or 8 + length > size:
                raise SourceError(
                    "truncated, or not a safetensors file",
                    where=path,
                    expected=f"a header of {length} bytes" if size >= 8 else "at least 8 bytes",
                    found=f"a file of {size} bytes",
                    hint=pointer_hint_of(path),
                )
            ensure_fetched(path, 8, length)
            text = file.read(length)
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error
    return _parse_header(text, path), 8 + length, size


def _parse_header(text: bytes, path: Path) -> dict[str, Any]:
    try:
        header = parse_json(text, HEADER, pairs=unique_pairs, constants=False)
    except FormatError as error:
        raise as_source_error(error, f"{path}, header") from error
    if not isinstance(header, dict) or text.startswith(BOM_UTF8):
        raise SourceError("the header is not a JSON object", where=path)
    return header


def _check_metadata(metadata: object, path: Path) -> None:
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise SourceError("damaged header: __metadata__", where=path, expected="strings by name")


def _check_spans(
    path: Path, placed: Iterable[tuple[int, int, SourceTensor]], data_size: int
) -> None:
    """Check that tensors follow each other without gaps, and that the last ends with the file."""
    at = 0
    for begin, end, tensor in placed:
        where = f"{path}, tensor {tensor.name}"
        if end > data_size:
            raise SourceError(
                "the file is truncated",
                where=where,
                expected=f"at least {end} bytes of data",
                found=f"{data_size} bytes",
                hint="download it again",
            )
        if begin != at:
            raise SourceError(
                "overlaps the tensor before it"
                if begin < at
                else "there are bytes before it that belong to no tensor",
                where=where,
                expected=f"data from byte {at}",
                found=f"from byte {begin}",
            )
        at = end
    if at != data_size:
        raise SourceError(
            "there are bytes at the end of the file that belong to no tensor",
            where=path,
            expected=f"{at} bytes of data",
            found=f"{data_size} bytes",
        )


def _tensor(path: Path, name: str, entry: Any, start: int) -> tuple[int, int, SourceTensor]:
    """Return the first byte and the end of a tensor's data, and the tensor."""
    where = f"{path}, tensor {name}"
    if len(name) > MAX_NAME:
        raise SourceError(
            "a tensor's name is too long",
            where=where,
            expected=f"at most {MAX_NAME} characters",
            found=len(name),
        )
    if not isinstance(entry, dict):
        raise SourceError("the header's entry is not an object", where=where)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise SourceError(
            "the header's entry is damaged", where=where, expected="shape and two data_offsets"
        )
    if not isinstance(dtype, str) or dtype not in _NUMPY:
        raise SourceError("unknown dtype", where=where, expected=", ".join(_NUMPY), found=dtype)
    if not is_shape(shape):
        raise SourceError(
            "impossible shape", where=where, expected=f"at most {MAX_DIMENSIONS} sizes", found=shape
        )
    begin, end = offsets
    size = prod(shape) * np.dtype(_NUMPY[dtype]).itemsize
    if end - begin != size:
        raise SourceError(
            "shape and offsets disagree",
            where=where,
            expected=f"{size} bytes",
            found=f"{end - begin} bytes",
        )
    matrix = (prod(shape[:-1]), shape[-1] if shape else 1)
    native = partial(_map, path, _NUMPY[dtype], start + begin, matrix)
    return begin, end, SourceTensor(name, tuple(shape), dtype, path.name, native)


def is_shape(value: Any) -> TypeGuard[Sequence[int]]:
    """Return whether a value can be the shape of a tensor."""
    is_short = isinstance(value, (list, tuple)) and len(value) <= MAX_DIMENSIONS
    return is_short and _are_sizes(list(value)) and prod(max(1, n) for n in value) < 1 << 60


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _map(path: Path, dtype: str, offset: int, shape: tuple[int, int]) -> npt.NDArray[Any]:
    if 0 in shape:
        return np.empty(shape, dtype)
    ensure_fetched(path, offset, prod(shape) * np.dtype(dtype).itemsize)
    try:
        return map_regular(path, dtype, offset, shape)
    except (OSError, ValueError) as error:
        raise SourceError("the file cannot be mapped", where=path, found=error) from error


FILES = WeightFiles("safetensors", SINGLE, INDEX, (".safetensors",), read_file)
