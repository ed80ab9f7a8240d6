"""Safetensors checkpoints: one file, or shards with an index, mapped and never loaded.

The header is parsed here rather than by the safetensors library because the library has no NumPy
type for BF16 and its errors name neither file nor tensor. Format: 8 bytes of little-endian
header length, a JSON header of {name: {dtype, shape, data_offsets}}, then the data; offsets
count from the end of the header.
"""

from __future__ import annotations

import json
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.sources._directories import WeightFiles
from rdrr_converter.sources._pieces import present
from rdrr_converter.sources._pointers import pointer_hint_of
from rdrr_converter.sources.base import SourceTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000
"""Bytes; the limit of the format's own library."""

_NUMPY = {
    "F64": "<f8", "I64": "<i8", "U64": "<u8", "F32": "<f4", "I32": "<i4", "U32": "<u4",
    "F16": "<f2", "BF16": "<u2", "I16": "<i2", "U16": "<u2", "I8": "i1", "U8": "u1",
    "BOOL": "u1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
"""Type of the mapped values; what NumPy has no type for is mapped as bits."""


def read_file(path: Path) -> dict[str, SourceTensor]:
    """The tensors of one file, in the order of their bytes.

    Raises:
        SourceError: The header is damaged, or a tensor lies outside the file.
    """
    header, start, size = _read_header(path)
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    tensors = [_tensor(path, name, entry, start, size) for name, entry in entries]
    return {tensor.name: tensor for _, tensor in sorted(tensors, key=lambda pair: pair[0])}


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Header, position of the first data byte, size of the file."""
    try:
        size = path.stat().st_size
        present(path, 0, 8)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > MAX_HEADER or 8 + length > size:
                raise SourceError(
                    "truncated, or not a safetensors file",
                    where=path,
                    expected=f"a header of {length} bytes" if size >= 8 else "at least 8 bytes",
                    found=f"a file of {size} bytes",
                    hint=pointer_hint_of(path),
                )
            present(path, 8, length)
            text = file.read(length)
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError("the header is not JSON", where=path, found=error) from error
    if not isinstance(header, dict):
        raise SourceError("the header is not a JSON object", where=path)
    return header, 8 + length, size


def _tensor(
    path: Path, name: str, entry: Any, start: int, file_size: int
) -> tuple[int, SourceTensor]:
    """First byte in the file, and the tensor."""
    where = f"{path}, tensor {name}"
    if not isinstance(entry, dict):
        raise SourceError("the header's entry is not an object", where=where)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise SourceError(
            "the header's entry is damaged", where=where, expected="shape and two data_offsets"
        )
    if dtype not in _NUMPY:
        raise SourceError("unknown dtype", where=where, expected=", ".join(_NUMPY), found=dtype)
    begin, end = offsets
    size = prod(shape) * np.dtype(_NUMPY[dtype]).itemsize
    if end - begin != size:
        raise SourceError(
            "shape and offsets disagree",
            where=where,
            expected=f"{size} bytes",
            found=f"{end - begin} bytes",
        )
    if start + end > file_size:
        raise SourceError(
            "truncated file",
            where=where,
            expected=f"at least {start + end} bytes",
            found=f"{file_size} bytes",
            hint="download it again",
        )
    matrix = (prod(shape[:-1]), shape[-1] if shape else 1)
    native = partial(_map, path, _NUMPY[dtype], start + begin, matrix)
    return begin, SourceTensor(name, tuple(shape), dtype, path.name, native)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _map(path: Path, dtype: str, offset: int, shape: tuple[int, int]) -> npt.NDArray[Any]:
    if 0 in shape:
        return np.empty(shape, dtype)
    present(path, offset, prod(shape) * np.dtype(dtype).itemsize)
    try:
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    except (OSError, ValueError) as error:
        raise SourceError("cannot be mapped", where=path, found=error) from error


FILES = WeightFiles("safetensors", SINGLE, INDEX, (".safetensors",), read_file)
