"""Read GGUF files as Hugging Face checkpoints: names, row order, norms and tokenizer.

For some architectures llama.cpp stores the rows of the query and key projections in another order,
and for Gemma it adds 1 to the norm weights. Both are undone when values are read. Tensors keep
their block type, so that a recipe that asks for the same type gets the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.files import find_file
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.architectures import (
    ROPE_FREQS,
    ROPE_LONG,
    ROPE_SHORT,
    find_gguf_architecture,
)
from rdrr_converter.gguf.config import read_config
from rdrr_converter.gguf.families.apertus import stated_tensors
from rdrr_converter.gguf.file import GgufFile, GgufTensor, read_gguf
from rdrr_converter.gguf.mmproj import is_mmproj, with_tower, with_tower_beside
from rdrr_converter.gguf.pooling import DENSE, FOLDERS, module_files
from rdrr_converter.gguf.rank_head import read_rank_head
from rdrr_converter.gguf.rope import from_factors, from_metadata
from rdrr_converter.gguf.settings import notes_on_window
from rdrr_converter.gguf.stored import decoded, map_tensor, read_tensor
from rdrr_converter.gguf.tokenizer import tokenizer_files

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
SUFFIX = ".gguf"
KIND = "gguf"

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def is_file(path: Path) -> bool:
    """Return whether `open_file` can read a file."""
    return path.is_file() and path.suffix == SUFFIX


def is_directory(path: Path) -> bool:
    """Return whether the directory holds exactly one GGUF, split or not, and no `config.json`."""
    return path.is_dir() and not (path / "config.json").exists() and len(entry_files(path)) == 1


def entry_files(path: Path) -> list[Path]:
    """Return the GGUF files of a directory to open; of a split GGUF only the first part.

    Vision towers in files of their own are no checkpoints, unless there is nothing else.
    """
    files = sorted(path.glob(f"*{SUFFIX}"))
    files = [file for file in files if not is_mmproj(file)] or files
    parts = {file: _PART.fullmatch(file.name) for file in files}
    return [file for file, part in parts.items() if part is None or int(part["number"]) == 1]


def open_directory(
    path: Path, *, follow_links: bool = False, mmproj: Path | None = None, sees: bool = False
) -> Source:
    """Open the only GGUF of a directory; the arguments are those of `open_file`.

    Raises:
        SourceError: The file is damaged or truncated, or a part of it is missing.
        ConversionError: The architecture of the model is not supported.
    """
    file = entry_files(path)[0]
    return open_file(file, follow_links=follow_links, mmproj=mmproj, sees=sees)


def open_file(
    path: Path, *, follow_links: bool = False, mmproj: Path | None = None, sees: bool = False
) -> Source:
    """Open a GGUF file, or all parts of a split GGUF, given one of them.

    Args:
        path: The file; nothing beside it is read but what the other arguments name.
        follow_links: Whether the source may follow links that lead out of its folder.
        mmproj: The file of its vision tower.
        sees: Whether to look for that file beside it if it is not named.

    Raises:
        SourceError: A file is damaged or truncated, or a part of it is missing.
        ConversionError: The architecture of the model is not supported.
    """
    files = [read_gguf(part) for part in _parts(path)]
    metadata = files[0].metadata
    architecture = find_gguf_architecture(metadata.get("general.architecture"), path)
    stored = _merged_parts(files)
    layers = [
        replace(read_tensor(stored.pop(name), name), name="linear.weight")
        for name in DENSE
        if name in stored
    ]
    architecture = architecture.for_tensors(stored)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    head = read_rank_head(metadata, architecture.name, architecture.rank, shapes, path)
    scores = [_score_tensor(stored.pop(theirs), ours) for theirs, ours in head.names.items()]
    embedding = _embedding(stored, path)
    factors = [_vector(stored.pop(name, None)) for name in (ROPE_FREQS, ROPE_SHORT, ROPE_LONG)]
    config = read_config(
        metadata,
        architecture,
        vocab_size=embedding.shape[0],
        tensors=len(stored),
        tied=HEAD not in stored,
        where=path,
    )
    config |= from_metadata(factors[0], config, path)
    config |= from_factors(factors[1], factors[2], config, path)
    tokenizer, generation, notes = tokenizer_files(metadata, path)
    modules, module_notes = module_files(
        {} if scores else metadata, architecture.name, [layer.shape for layer in layers], path
    )
    tensors = _model_tensors(stored, architecture, config)
    if architecture.in_metadata is not None:
        tensors += stated_tensors(metadata, config["num_hidden_layers"], str(path))
    config |= architecture.stated_by(tensor.name for tensor in tensors)
    config |= head.config
    tensors += scores
    source = Source(
        path=path,
        kind=KIND,
        config=config,
        tensors={tensor.name: tensor for tensor in tensors},
        generation_config=generation,
        generated={**tokenizer, **modules},
        notes=(*notes, *head.notes, *module_notes, *notes_on_window(config, architecture.settings)),
        modules={name: {layer.name: layer} for name, layer in zip(FOLDERS, layers, strict=False)},
        follow_links=follow_links,
        head=head.rule,
    )
    if mmproj is not None:
        return with_tower(source, metadata, mmproj)
    return with_tower_beside(source, metadata) if sees else source


def _model_tensors(
    stored: Mapping[str, GgufTensor], architecture: GgufArchitecture, config: Mapping[str, Any]
) -> list[SourceTensor]:
    """Return the tensors of a model with the names and the form of Hugging Face checkpoints."""
    read = (
        _source_tensor(tensor, architecture, config["head_dim"] or 0) for tensor in stored.values()
    )
    return list(architecture.in_hf_form(read, config))


def part_names(name: str) -> tuple[str, ...]:
    """Return the names of all parts of a split GGUF in order, given one; or the name itself."""
    match = _PART.fullmatch(name)
    if match is None:
        return (name,)
    return tuple(
        f"{match['stem']}-{number:05d}-of-{match['count']}{SUFFIX}"
        for number in range(1, int(match["count"]) + 1)
    )


def _parts(path: Path) -> list[Path]:
    names = [path.with_name(name) for name in part_names(path.name)]
    missing = [
        name for name in names if find_file(name.parent, name.name, follow_links=True) is None
    ]
    if missing or not names:
        raise SourceError(
            "a part of the GGUF is missing",
            where=path,
            expected=missing[0].name if missing else "parts numbered from 1",
            hint="download it again",
        )
    return names


def _merged_parts(files: Sequence[GgufFile]) -> dict[str, GgufTensor]:
    """Return the tensors of all parts, after checking their number against the metadata."""
    stored: dict[str, GgufTensor] = {}
    for file in files:
        if twice := file.tensors.keys() & stored.keys():
            raise SourceError("a tensor is in two parts", where=file.path, found=min(twice))
        stored |= file.tensors
    stated = files[0].metadata.get("split.tensors.count")
    if stated is not None and stated != len(stored):
        raise SourceError(
            "the parts do not belong to the same GGUF",
            where=files[0].path,
            expected=f"{stated} tensors",
            found=len(stored),
        )
    return stored


def _embedding(stored: Mapping[str, GgufTensor], path: Path) -> GgufTensor:
    """Return the embedding, whose number of rows is the size of the vocabulary."""
    tensor = stored.get(EMBEDDING)
    if tensor is None:
        raise SourceError("a tensor is missing", where=path, expected=EMBEDDING)
    if len(tensor.shape) != 2:
        raise SourceError(
            "impossible shape",
            where=f"{tensor.path}, tensor {EMBEDDING}",
            expected="a matrix",
            found=list(tensor.shape),
        )
    return tensor


def _vector(tensor: GgufTensor | None) -> npt.NDArray[np.float64] | None:
    if tensor is None:
        return None
    if not prod(tensor.shape) or prod(tensor.shape[:-1]) != 1:
        raise SourceError(
            "impossible shape",
            where=f"{tensor.path}, tensor {tensor.name}",
            expected="a vector",
            found=list(tensor.shape),
        )
    values: npt.NDArray[np.float64] = read_tensor(tensor, tensor.name).read()[0].astype(np.float64)
    return values


def _score_tensor(tensor: GgufTensor, name: str) -> SourceTensor:
    """Return a tensor of the head of a ranking model; one row may be stored as a vector."""
    read = decoded(read_tensor(tensor, name))
    is_row = len(read.shape) == 1 and name.endswith(".weight") and "norm" not in name
    return replace(read, shape=(1, read.columns)) if is_row else read


def _source_tensor(
    tensor: GgufTensor, architecture: GgufArchitecture, head_dim: int
) -> SourceTensor:
    """Return a tensor with the name, row order and values that Hugging Face uses."""
    return decoded(_in_hf_order(tensor, architecture, head_dim))


def _in_hf_order(tensor: GgufTensor, architecture: GgufArchitecture, head_dim: int) -> SourceTensor:
    name = architecture.translate(tensor.name)
    read = read_tensor(tensor, name)
    if name.endswith("norm.weight"):
        return replace(read, offset=architecture.offset_of(name))
    if name.endswith(("shared_expert_gate.weight", "moe_statics.e_score_correction_bias")):
        return replace(read, shape=(read.rows, read.columns))  # stored as a vector
    if len(read.shape) == 3 and name.startswith("model.altup_"):
        return replace(read, shape=(read.rows, read.columns))  # stored as a stack of matrices
    if not architecture.is_interleaved(name):
        return read
    if len(tensor.shape) == 1:
        return replace(read, native=partial(_bias_in_hf_order, tensor, head_dim))
    # A number of rows that is no multiple of the head dimension is reported with the shapes later.
    return replace(read, interleaved=0 if read.rows % head_dim else head_dim)


def _bias_in_hf_order(tensor: GgufTensor, head_dim: int) -> npt.NDArray[Any]:
    """Return a bias with the two halves of each head one after the other."""
    values = map_tensor(tensor)
    if values.shape[1] % head_dim:
        return values
    return np.ascontiguousarray(values.reshape(-1, head_dim // 2, 2).swapaxes(1, 2)).reshape(1, -1)
