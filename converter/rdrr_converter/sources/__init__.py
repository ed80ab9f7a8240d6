"""Checkpoints as lazy tables of tensors; `open_source` picks the reader.

A further kind of checkpoint is a module with functions like those of `gguf` and a line for each
in `_OPENERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rdrr_format.errors import SourceError
from rdrr_format.locations import local_path
from rdrr_format.stores import store_errors
from rdrr_manifests.models import MANIFEST_NAME

from rdrr_converter.sources import gguf, safetensors, torch_pickle
from rdrr_converter.sources._pointers import broken_links
from rdrr_converter.sources.base import Source, SourceTensor
from rdrr_converter.sources.quantized import dequantized

__all__ = ["Source", "SourceTensor", "open_source"]

_OPENERS: tuple[tuple[str, Callable[[Path], bool], Callable[[Path], Source]], ...] = (
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
"""What a reader takes, how it recognises it, and the reader; the first that fits is used."""


def open_source(path: str | Path) -> Source:
    """Open a checkpoint; no weight is read yet. Quantized weights will be dequantized when read.

    Raises:
        UsageError: The path is empty, or no file system takes it.
        StoreError: The path cannot be looked at.
        SourceError: No such path, not a checkpoint of a known kind, or a damaged one, or one that
            is quantized in a way that is not known.
        ConversionError: A GGUF of an architecture that is not known.
    """
    path = local_path(path)
    with store_errors(path):
        is_there = path.exists()
    if not is_there:
        raise SourceError("no such checkpoint", where=path)
    for _, recognises, opener in _OPENERS:
        if recognises(path):
            return dequantized(opener(path))
    kinds = ", ".join(kind for kind, _, _ in _OPENERS)
    if (path / MANIFEST_NAME).is_file():
        hint = "`rdrr export` makes a checkpoint of it"
        raise SourceError("an RDRR package already", where=path, hint=hint)
    raise SourceError(
        "not a checkpoint that can be read", where=path, expected=kinds, found=broken_links(path)
    )
