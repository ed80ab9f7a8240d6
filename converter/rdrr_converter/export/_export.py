"""The export of a package: the order of its steps, and the types of tensors in safetensors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from rdrr_format.errors import ConversionError, UsageError
from rdrr_format.locations import is_url, local_path
from rdrr_format.misuse import explained
from rdrr_format.options import parse_size
from rdrr_manifests.graph.mtp import MTP
from rdrr_manifests.graph.vision import VISION
from rdrr_manifests.logical import LogicalTensor, logical_tensors
from rdrr_manifests.models import Manifest
from rdrr_manifests.package import Package, open_package

from rdrr_converter.architectures import ArchitectureRule
from rdrr_converter.architectures.base import StackRule
from rdrr_converter.checkpoint.outgoing import OutgoingTensor, Stack
from rdrr_converter.export._check import check_complete, norm_shift
from rdrr_converter.export._config import find_rule, published_keys
from rdrr_converter.export._destination import check_replaceable
from rdrr_converter.export._gguf import (
    find_gguf_architecture,
    plan_gguf,
    plan_layers,
    write_gguf,
)
from rdrr_converter.export._mmproj import plan_tower
from rdrr_converter.export._result import ExportedTensor, ExportResult
from rdrr_converter.export._safetensors import SHARD_SIZE, write_directory
from rdrr_converter.export._sentences import (
    head_tensors,
    of_language_model,
    with_head_keys,
    write_modules,
)
from rdrr_converter.export._stacks import (
    arrangement,
    stacked,
    transpose,
    written_stacks,
)
from rdrr_converter.gguf.draft_head import further_layer
from rdrr_converter.gguf.pooling import layer_names
from rdrr_converter.output.destination import atomic_folder
from rdrr_converter.progress import Progress, ProgressCallback
from rdrr_converter.reading.interleaved import arrange, stacked_shape

DTYPES: Mapping[str, str] = MappingProxyType({"f32": "F32", "f16": "F16", "bf16": "BF16"})
"""Storage types by the values of `dtype`."""

ExportDtype = Literal["f32", "f16", "bf16"]
"""The keys of `DTYPES`, for annotations."""

_DTYPE_NAMES: tuple[ExportDtype, ...] = get_args(ExportDtype)

_LEFT_OUT = "the head for multi-token prediction is left out, because "
_WITHOUT_HEAD: Mapping[str, str] = MappingProxyType(
    {
        "gguf": f"{_LEFT_OUT}it is incomplete, or llama.cpp has none for this architecture",
        "safetensors": f"{_LEFT_OUT}only an export as GGUF has it",
    }
)
"""The note on a head that is not written, by the kind of checkpoint."""

_WITHOUT_TOWER: Mapping[str, str] = MappingProxyType(
    {
        "gguf": "the vision tower is left out: `mmproj` writes it as a file of its own",
        "safetensors": "the vision tower is left out: only an export as GGUF has it",
    }
)

ExportKind = Literal["safetensors", "gguf"]

KINDS: tuple[ExportKind, ...] = get_args(ExportKind)
"""Kinds of checkpoint that can be written."""

_TORCH: Mapping[str, str] = MappingProxyType(
    {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
)


_FILES = (".safetensors", ".bin", ".pt", ".pth", ".onnx", ".ggml", ".json", ".zip")
"""Ends of the names of files that somebody may expect to be written."""


@explained
def export(
    location: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: ExportKind | None = None,
    dtype: ExportDtype | None = None,
    lossless: bool = False,
    arch: str | None = None,
    mmproj: str | os.PathLike[str] | None = None,
    shard_size: int | str = SHARD_SIZE,
    overwrite: bool = False,
    follow_links: bool = False,
    progress: ProgressCallback | None = None,
) -> ExportResult:
    """Write a package as a checkpoint.

    Args:
        location: Folder or URL of the package.
        destination: The folder (safetensors) or file (gguf) to create.
        to: `safetensors` or `gguf`; by default `gguf` for a destination that ends with .gguf.
        dtype: Storage type of all tensors, `f32`, `f16` or `bf16` (safetensors only). By default
            it is the type of the matrices if they have one scalar type, else `f16`, or `f32`
            with `lossless`.
        lossless: Refuse to export if any value would change.
        arch: Architecture of the checkpoint; None for the one that the package names.
        mmproj: The file to create for the vision tower (gguf only); without it the tower is left
            out.
        shard_size: Maximum size of a safetensors file, in bytes or as text like `5GB`.
        overwrite: Replace an existing checkpoint once the new one is complete.
        follow_links: Follow symbolic links in the package's folder, wherever they lead.
        progress: Called with each progress event.

    Raises:
        UsageError: An option is invalid.
        ManifestError: The package cannot be read, or needs a feature that this version does not
            support.
        ConversionError: The package cannot be exported with these options.
        StoreError: The destination exists and may not be replaced, or cannot be written.
    """
    to = to or ("gguf" if os.fspath(destination).lower().endswith(".gguf") else "safetensors")
    to, dtype = _checked(to, dtype)
    if to == "safetensors" and os.fspath(destination).lower().endswith(_FILES):
        raise UsageError(
            "a checkpoint in safetensors is a folder of several files",
            expected="the name of a folder, or of a file that ends with .gguf",
            found=destination,
        )
    if isinstance(shard_size, str):
        shard_size = parse_size(shard_size, "`shard_size` is not a size")
    if is_url(destination):
        raise UsageError(
            "a checkpoint can be exported to this machine only",
            expected="a path",
            found=destination,
        )
    path = local_path(destination)
    source = None if is_url(location) else local_path(location)
    check_replaceable(path, source, to, overwrite=overwrite)
    tower_path = None if mmproj is None else _tower_path(mmproj, path, to)
    if tower_path is not None:
        check_replaceable(tower_path, source, to, overwrite=overwrite)
    with open_package(location, follow_links=follow_links) as package:
        whole = logical_tensors(package)
        stored = [logical for logical in whole if not logical.name.startswith(VISION)]
        everything = [logical for logical in stored if not logical.name.startswith(MTP)]
        tensors = of_language_model(package.manifest, everything)
        rule, config = find_rule(package, tensors, arch)
        rule = rule.named_by(rule.config(config, package.where))
        model = _Model(package, everything, tensors, rule, config)
        further: tuple[LogicalTensor, ...] = ()
        if to == "gguf":
            further = further_layer(package, stored, find_gguf_architecture(rule, package))
        tower = None
        if tower_path is not None:
            of_tower = [logical for logical in whole if logical.name.startswith(VISION)]
            tower = plan_tower(package, of_tower, rule, tower_path, lossless=lossless)
        counter = Progress(progress)
        weights = sum(prod(tensor.shape) for tensor in (*tensors, *further))
        counter.start("export", weights + (tower.weights if tower is not None else 0))
        notes: tuple[str, ...] = ()
        if to == "gguf":
            exported, notes = _write_file(model, further, path, counter, lossless)
        else:
            kind = _scalar(tensors, dtype, lossless)
            exported = _write_folder(model, kind, path, counter, shard_size, lossless)
        if tower is not None:
            exported += tower.write(package, counter)
            notes = (*tower.notes, *notes)
    if len(everything) + len(further) < len(stored):
        notes = (_WITHOUT_HEAD[to], *notes)
    if len(stored) < len(whole) and tower is None:
        notes = (_WITHOUT_TOWER[to], *notes)
    return ExportResult(
        destination=path,
        kind=to,
        architecture=rule.name,
        tensors=exported,
        notes=notes,
    )


@dataclass(frozen=True)
class _Model:
    """The model of a package, and the architecture as which it is exported.

    Attributes:
        package: The package.
        everything: Its tensors without those of a draft head.
        tensors: Those of the language model.
        rule: The architecture.
        config: Content of `config.json`.
    """

    package: Package
    everything: Sequence[LogicalTensor]
    tensors: Sequence[LogicalTensor]
    rule: ArchitectureRule
    config: Mapping[str, Any]


def _write_file(
    model: _Model,
    further: Sequence[LogicalTensor],
    path: Path,
    counter: Progress,
    lossless: bool,
) -> tuple[tuple[ExportedTensor, ...], tuple[str, ...]]:
    """Write a GGUF, with the tensors of a further layer; return what was written, and notes."""
    package, rule = model.package, model.rule
    outgoing = plan_gguf(package, (*model.tensors, *further), rule, lossless=lossless)
    names = layer_names(package, find_gguf_architecture(rule, package))
    outgoing += plan_layers(package, model.everything, names, lossless=lossless)
    errors, notes = write_gguf(package, model.tensors, outgoing, rule, model.config, path, counter)
    return tuple(ExportedTensor.of(tensor, errors[tensor.name]) for tensor in outgoing), notes


def _write_folder(
    model: _Model, dtype: str, path: Path, counter: Progress, shard_size: int, lossless: bool
) -> tuple[ExportedTensor, ...]:
    """Write a Hugging Face directory in safetensors; return what was written."""
    package, rule = model.package, model.rule
    outgoing = _plan_directory(model.tensors, rule, dtype, package.manifest)
    head = head_tensors(package.manifest, model.everything)
    outgoing += [OutgoingTensor(tensor.stored, (tensor,), tensor.shape, dtype) for tensor in head]
    check_complete(package, (*model.tensors, *head), outgoing, rule)
    stated = with_head_keys(published_keys(model.config, rule), package.manifest, rule)
    stated["torch_dtype"] = _TORCH[dtype]
    with atomic_folder(path) as staging:
        folder = staging.package
        errors = write_directory(package, outgoing, stated, folder, shard_size, counter)
        write_modules(package, folder)
        if lossless:
            _check_lossless(errors, dtype)
    return tuple(ExportedTensor.of(tensor, errors[tensor.name]) for tensor in outgoing)


def _tower_path(mmproj: str | os.PathLike[str], path: Path, to: str) -> Path:
    """Return the path of the file of the vision tower.

    Raises:
        UsageError: It is that of the model, or no model of llama.cpp is written.
    """
    if to != "gguf" or is_url(mmproj) or local_path(mmproj) == path:
        raise UsageError(
            "`mmproj` is the file of the vision tower beside a GGUF",
            expected="another file on this machine, and a destination that is a GGUF",
            found=mmproj,
        )
    return local_path(mmproj)


def _checked(to: str, dtype: str | None) -> tuple[ExportKind, ExportDtype | None]:
    """Return the two options in the case of their tables.

    Raises:
        UsageError: One of them has no such value, or they contradict each other.
    """
    kind = next((known for known in KINDS if known == to.lower()), None)
    if kind is None:
        raise UsageError("`to` has no such value", expected=", ".join(KINDS), found=to)
    if dtype is None:
        return kind, None
    scalar = next((known for known in _DTYPE_NAMES if known == dtype.lower()), None)
    if scalar is None:
        raise UsageError("`dtype` has no such value", expected=", ".join(DTYPES), found=dtype)
    if kind == "gguf":
        raise UsageError(
            "`dtype` is only for safetensors: a GGUF keeps the types of the package",
            hint="to get other types, convert the checkpoint again",
        )
    return kind, scalar


def _scalar(tensors: Sequence[LogicalTensor], dtype: str | None, lossless: bool) -> str:
    """Choose the type of all tensors in a Hugging Face directory."""
    if dtype is not None:
        return DTYPES[dtype]
    matrices = {tensor.dtype.name for tensor in tensors if len(tensor.shape) > 1}
    if len(matrices) == 1 and matrices <= set(DTYPES.values()):
        return matrices.pop()
    return "F32" if lossless or "F32" in matrices else "F16"


def _plan_directory(
    tensors: Sequence[LogicalTensor], rule: ArchitectureRule, dtype: str, manifest: Manifest
) -> list[OutgoingTensor]:
    """Plan the tensors with the names, stacks and order of published checkpoints."""
    outgoing = [
        _arranged(kind, stack, dtype) for kind, stack in written_stacks(tensors, rule.stacks)
    ]
    done = {part.name for written in outgoing for part in written.parts}
    shift = norm_shift(rule, manifest)
    stacks = [stack for stack in rule.stacks if stack.is_published]
    for name, parts in stacked([tensor for tensor in tensors if tensor.name not in done], stacks):
        rows = rule.row_names(name, parts[0].rows)
        if rows:
            outgoing += [_row(row, parts[0], at, dtype, shift) for at, row in enumerate(rows)]
            continue
        if gate := rule.head_gate(name):
            heads = manifest.architecture.num_attention_heads
            names = (rule.published_name(name), gate)
            outgoing += _without_gates(names, parts[0], heads, dtype)
            continue
        shape = parts[0].shape
        if len(parts) > 1:
            shape = (sum(part.shape[0] for part in parts), *shape[1:])
        join = arrangement(name, stacks, manifest.architecture)
        join = transpose if rule.is_transposed(name) else join
        own_shift = shift if parts[0].role == "norm" else 0.0
        outgoing.append(
            OutgoingTensor(
                rule.published_name(name),
                parts,
                shape[::-1] if join is transpose else shape,
                dtype,
                shift=own_shift,
                arrange=join,
            )
        )
    return outgoing


def _row(name: str, whole: LogicalTensor, at: int, dtype: str, shift: float) -> OutgoingTensor:
    """Plan a row of a norm's weight as a tensor of its own."""
    part = replace(whole, shape=whole.shape[1:], first=whole.first + at)
    return OutgoingTensor(name, (part,), part.shape, dtype, shift=shift)


def _without_gates(
    names: Sequence[str], whole: LogicalTensor, heads: int, dtype: str
) -> Iterator[OutgoingTensor]:
    """Plan the rows of all heads, and one row with the gate of each, as two tensors."""
    size = whole.rows // heads // 2
    for name, offset, count in zip(names, (0, size), (size, 1), strict=True):
        parts = tuple(
            replace(whole, shape=(count, whole.columns), first=whole.first + start + offset)
            for start in range(0, whole.rows, 2 * size)
        )
        yield OutgoingTensor(name, parts, (heads * count, whole.columns), dtype)


def _arranged(rule: StackRule, stack: Stack, dtype: str) -> OutgoingTensor:
    """Plan a stack of experts that readers of the architecture expect."""
    assert rule.arrangement is not None, "only such stacks are arranged"
    (name, parts), count = stack, len(rule.parts)
    experts = len(parts) // count if "{expert}" in rule.parts[0] else None
    shapes = [(part.rows, part.columns) for part in parts[:count]]
    shape = stacked_shape(rule.arrangement, shapes, experts)
    join = partial(arrange, arrangement=rule.arrangement)
    return OutgoingTensor(name, parts, shape, dtype, arrange=join, at_a_time=count)


def _check_lossless(errors: Mapping[str, float], dtype: str) -> None:
    """Refuse a checkpoint in which any value has changed.

    Raises:
        ConversionError: A value has changed.
    """
    lost = [name for name, error in errors.items() if error]
    if lost:
        raise ConversionError(
            f"{dtype} cannot hold every value exactly",
            where=lost[0],
            expected="no changed value (`lossless`)",
            found=f"{len(lost)} tensors with changed values",
            hint="use `dtype` f32",
        )
