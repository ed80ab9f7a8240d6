"""Checkpoints as lazy tables of tensors; `open_source` picks the reader.

To support another kind of checkpoint, add a module with functions like those of `gguf`, and rows
for them in `_OPENERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rdrr_format.errors import SourceError, UsageError
from rdrr_format.locations import local_path
from rdrr_format.stores import store_errors
from rdrr_manifests.models import MANIFEST_NAME

from rdrr_converter.checkpoint.files import find_file
from rdrr_converter.checkpoint.pointers import broken_links
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.gguf import source as gguf
from rdrr_converter.sources import safetensors, torch_pickle
from rdrr_converter.sources.quantized import dequantized

_OPENERS: tuple[tuple[str, Callable[[Path], bool], Callable[..., Source]], ...] = (
    ("a .safetensors file", safetensors.FILES.is_file, safetensors.FILES.open_file),
    (
        "a directory with config.json and model.safetensors or its index",
        safetensors.FILES.is_directory,
        safetensors.FILES.open_directory,
    ),
    ("a .bin, .pt or .pth file", torch_pickle.FILES.is_file, torch_pickle.FILES.open_file),
    (
        "one with pytorch_model.bin or its index",
        torch_pickle.FILES.is_directory,
        torch_pickle.FILES.open_directory,
    ),
    ("a .gguf file", gguf.is_file, gguf.open_file),
    ("a directory with one .gguf file", gguf.is_directory, gguf.open_directory),
)
"""What each reader reads, how it recognises that, and the reader; the first match is used."""

_LISTED = 20
"""Most files that a message names."""


def open_source(
    path: str | Path,
    *,
    follow_links: bool = False,
    mmproj: Path | None = None,
    sees: bool = False,
) -> Source:
    """Open a checkpoint without reading weights; quantized weights are dequantized when read.

    Args:
        path: The checkpoint.
        follow_links: Whether files beside the weights may be links that lead out of the folder.
        mmproj: The file with the vision tower of a GGUF.
        sees: Whether to look for that file beside a GGUF if it is not named.

    Raises:
        UsageError: The path is empty, or not valid on any file system, or `mmproj` is given for
            another kind of checkpoint.
        StoreError: The path cannot be accessed, or a file beside the weights is a link that leads
            out of the folder.
        SourceError: The path does not exist, is not a checkpoint of a known kind, or is damaged, or
            the checkpoint is quantized by an unknown method.
        ConversionError: The checkpoint is a GGUF of an unknown architecture.
    """
    path = local_path(path)
    with store_errors(path):
        is_there = path.exists()
    if not is_there:
        raise SourceError("no such checkpoint", where=path)
    if not path.is_dir():
        find_file(path.parent, path.name, follow_links=True)
    for _, recognises, opener in _OPENERS:
        if not recognises(path):
            continue
        if opener in (gguf.open_file, gguf.open_directory):
            return dequantized(opener(path, follow_links=follow_links, mmproj=mmproj, sees=sees))
        if mmproj is not None:
            message = "`mmproj` is the vision tower of a GGUF; other checkpoints hold theirs"
            raise UsageError(message, expected="a GGUF", found=path)
        return dequantized(opener(path, follow_links=follow_links))
    kinds = ", ".join(kind for kind, _, _ in _OPENERS)
    if (path / MANIFEST_NAME).is_file():
        hint = "`rdrr export` makes a checkpoint of it"
        raise SourceError("this is an RDRR package already", where=path, hint=hint)
    is_folder = path.is_dir()
    files = [file.name for file in gguf.entry_files(path)] if is_folder else []
    if files:
        raise SourceError(
            "the folder has weights in GGUF files only, of which one is converted",
            where=path,
            found=_listed(files),
            hint=f"name one of them, as in {path / files[0]}",
        )
    names = sorted(file.name for file in path.iterdir()) if is_folder else []
    raise SourceError(
        "not a checkpoint that can be read",
        where=path,
        expected=kinds,
        found=broken_links(path) or _listed(names) or None,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + ", ..." * (len(names) > _LISTED)
