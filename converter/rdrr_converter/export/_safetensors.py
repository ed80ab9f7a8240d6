"""Writing a Hugging Face directory: safetensors files, their index, configuration and tokenizer.

The safetensors library is not used because it needs all tensors of a file in memory. A file
consists of a length (u64), a JSON header of that length and the bytes of the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdrr_format.stores import store_errors
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.export._values import Encoder
from rdrr_converter.progress import Progress
from rdrr_converter.tokenizer.files import COPIED

SHARD_SIZE = 5 * 10**9
"""Default maximum of tensor bytes in a file, as in transformers.

A larger tensor gets a file of its own.
"""

INDEX = "model.safetensors.index.json"
_ALIGNMENT = 8


@dataclass(frozen=True)
class _File:
    name: str
    tensors: tuple[OutgoingTensor, ...]


def write_directory(
    package: Package,
    tensors: Sequence[OutgoingTensor],
    config: Mapping[str, Any],
    folder: Path,
    shard_size: int,
    progress: Progress,
) -> dict[str, float]:
    """Write a checkpoint into a folder.

    Returns:
        Relative error of each tensor, by its name in the checkpoint.

    Raises:
        StoreError: The disk is full, or the folder cannot be written.
        ConversionError: A value does not fit the storage type.
    """
    files = _files(tensors, shard_size)
    errors: dict[str, float] = {}
    for file in files:
        with store_errors(folder / file.name):
            errors |= _write(package, file, folder / file.name, progress)
    if len(files) > 1:
        _write_index(files, folder / INDEX)
    _write_text(folder / "config.json", config)
    for name in COPIED:
        if package.store.exists(name):
            with store_errors(folder / name):
                (folder / name).write_bytes(package.store.read(name).tobytes())
    return errors


def _files(tensors: Sequence[OutgoingTensor], shard_size: int) -> tuple[_File, ...]:
    groups: list[list[OutgoingTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + tensor.size > shard_size:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.size
    if len(groups) == 1:
        return (_File("model.safetensors", tuple(groups[0])),)
    return tuple(
        _File(f"model-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, 1)
    )


def _write(package: Package, file: _File, path: Path, progress: Progress) -> dict[str, float]:
    errors: dict[str, float] = {}
    with path.open("wb") as out:
        for piece in _header(file.tensors):
            out.write(piece)
        for tensor in file.tensors:
            encoder = Encoder(package, tensor)
            for chunk in encoder.chunks():
                # A chunk is not contiguous if it is a part of wider rows.
                out.write(chunk.tobytes())
            errors[tensor.name] = encoder.relative_rmse
            progress.advance(tensor.name, tensor.weights)
    return errors


def _header(tensors: Sequence[OutgoingTensor]) -> Iterator[bytes]:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in tensors:
        end = position + tensor.size
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text


def _write_index(files: Sequence[_File], path: Path) -> None:
    names = {tensor.name: file.name for file in files for tensor in file.tensors}
    total = sum(tensor.size for file in files for tensor in file.tensors)
    _write_text(path, {"metadata": {"total_size": total}, "weight_map": names})


def _write_text(path: Path, values: Mapping[str, Any]) -> None:
    with store_errors(path):
        text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
