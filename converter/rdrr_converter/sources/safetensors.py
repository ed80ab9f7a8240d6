"""Read safetensors checkpoints: a directory with one or several shards, or a bare file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import FormatError, SourceError
from rdrr_format.regular_files import map_regular
from rdrr_format.safetensors_file import NUMPY, TensorEntry, read_header

from rdrr_converter.checkpoint.files import as_source_error
from rdrr_converter.checkpoint.pointers import pointer_hint_of
from rdrr_converter.checkpoint.source import SourceTensor, with_aliases
from rdrr_converter.checkpoint.sparse_files import ensure_fetched
from rdrr_converter.sources._directories import WeightFiles

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_file(path: Path) -> Mapping[str, SourceTensor]:
    """Read the tensors of one file in the order of their bytes, then further names of tensors.

    Raises:
        SourceError: The header is damaged, or does not describe every byte of the file exactly
            once.
    """
    try:
        header = read_header(path, ensure_fetched)
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error
    except FormatError as error:
        hint = pointer_hint_of(path) or error.hint
        raise as_source_error(error, error.where, hint) from error
    tensors = {entry.name: _tensor(path, entry) for entry in header.tensors}
    return with_aliases(tensors, header.metadata)


def _tensor(path: Path, entry: TensorEntry) -> SourceTensor:
    shape = entry.shape
    matrix = (prod(shape[:-1]), shape[-1] if shape else 1)
    native = partial(_map, path, NUMPY[entry.dtype], entry.offset, matrix)
    return SourceTensor(entry.name, shape, entry.dtype, str(path), native)


def _map(path: Path, dtype: str, offset: int, shape: tuple[int, int]) -> npt.NDArray[Any]:
    if 0 in shape:
        return np.empty(shape, dtype)
    ensure_fetched(path, offset, prod(shape) * np.dtype(dtype).itemsize)
    try:
        return map_regular(path, dtype, offset, shape)
    except (OSError, ValueError) as error:
        raise SourceError("the file cannot be mapped", where=path, found=error) from error


FILES = WeightFiles("safetensors", SINGLE, INDEX, (".safetensors",), read_file)
