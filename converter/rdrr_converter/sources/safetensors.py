"""Safetensors checkpoints: one file, or shards with an index, mapped and never loaded.

The header is parsed here rather than by the safetensors library because the library has no NumPy
type for BF16 and its errors name neither file nor tensor. Format: 8 bytes of little-endian
header length, a JSON header of {name: {dtype, shape, data_offsets}}, then the data; offsets
count from the end of the header.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.sources._base import Source, SourceTensor, read_json_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000
"""Bytes; the limit of the format's own library."""

_NUMPY = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2,
    "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


def is_directory(path: Path) -> bool:
    """Whether the directory holds what `open_directory` reads, or claims to."""
    return path.is_dir() and any((path / name).exists() for name in (SINGLE, INDEX, "config.json"))


def is_file(path: Path) -> bool:
    """Whether this is a single file that `open_file` reads."""
    return path.is_file() and path.suffix == ".safetensors"


def open_directory(path: Path) -> Source:
    """Open a directory with `config.json` and `model.safetensors` or an index of shards.

    Raises:
        SourceError: A file is missing or damaged.
    """
    if (path / INDEX).is_file():
        tensors = _read_sharded(path)
    elif (path / SINGLE).is_file():
        tensors = read_file(path / SINGLE)
    else:
        raise SourceError("no weights here", where=path, expected=f"{SINGLE} or {INDEX}")
    return _source(path, tensors)


def open_file(path: Path) -> Source:
    """Open one `.safetensors` file, with its configuration beside it.

    Raises:
        SourceError: The file is damaged or there is no `config.json` beside it.
    """
    return _source(path.parent, read_file(path))


def _source(path: Path, tensors: Mapping[str, SourceTensor]) -> Source:
    if not (path / "config.json").is_file():
        raise SourceError(
            "not a checkpoint", where=path, expected="a config.json beside the weights"
        )
    generation = path / "generation_config.json"
    return Source(
        path=path,
        kind="safetensors",
        config=read_json_object(path / "config.json"),
        tensors=tensors,
        generation_config=read_json_object(generation) if generation.is_file() else {},
    )


def _read_sharded(path: Path) -> dict[str, SourceTensor]:
    index = path / INDEX
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise SourceError("the index has no weight_map", where=index, expected="{tensor: file}")
    tensors: dict[str, SourceTensor] = {}
    for name in sorted(set(weight_map.values())):
        # A path in the index must not lead out of the checkpoint.
        if Path(name).name != name or not (path / name).is_file():
            raise SourceError(
                "a shard is missing", where=index, expected=name, hint="download it again"
            )
        tensors.update(read_file(path / name))
    lost = sorted(set(weight_map) - set(tensors))
    if lost:
        raise SourceError(
            "a shard lacks a tensor of the index",
            where=path / weight_map[lost[0]],
            expected=lost[0],
            found=f"{len(lost)} tensors missing",
        )
    return tensors


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
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > MAX_HEADER or 8 + length > size:
                raise SourceError(
                    "truncated, or not a safetensors file",
                    where=path,
                    expected=f"a header of {length} bytes" if size >= 8 else "at least 8 bytes",
                    found=f"a file of {size} bytes",
                )
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
    if dtype not in _BYTES:
        raise SourceError("unknown dtype", where=where, expected=", ".join(_BYTES), found=dtype)
    begin, end = offsets
    if end - begin != prod(shape) * _BYTES[dtype]:
        raise SourceError(
            "shape and offsets disagree",
            where=where,
            expected=f"{prod(shape) * _BYTES[dtype]} bytes",
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
    native: Callable[[], npt.NDArray[Any]]
    if dtype in _NUMPY:
        native = partial(_map, path, _NUMPY[dtype], start + begin, matrix)
    else:
        native = partial(_refuse, where, dtype)
    return begin, SourceTensor(name, tuple(shape), dtype, path.name, native)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _map(path: Path, dtype: str, offset: int, shape: tuple[int, int]) -> npt.NDArray[Any]:
    if 0 in shape:
        return np.empty(shape, dtype)
    try:
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    except (OSError, ValueError) as error:
        raise SourceError("cannot be mapped", where=path, found=error) from error


def _refuse(where: str, dtype: str) -> npt.NDArray[Any]:
    raise SourceError(
        "weights of this dtype cannot be converted",
        where=where,
        expected=", ".join(_NUMPY),
        found=dtype,
    )
