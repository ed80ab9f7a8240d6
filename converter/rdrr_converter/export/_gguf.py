"""Writing a GGUF: which type each tensor gets, in which order its rows stand, and the file.

Blocks stay blocks wherever a GGUF can hold them: whole rows of whole blocks. Others are decoded
to F16, or F32 where a value is too large for it. gguf-py writes the container.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
from rdrr_format.durable import flush_file, make_folder, rename_durably
from rdrr_format.errors import ConversionError
from rdrr_format.layouts import Layout
from rdrr_format.stores import store_errors
from rdrr_manifests.logical import EMBEDDING, HEAD, LogicalTensor, RowReader
from rdrr_manifests.package import Package

from rdrr_converter.architectures import ArchitectureRule, find_architecture
from rdrr_converter.export._check import check_config, norm_shift
from rdrr_converter.export._gguf_metadata import metadata
from rdrr_converter.export._gguf_tokenizer import tokenizer_metadata
from rdrr_converter.export._stacks import is_of_experts, joined_experts, stacked
from rdrr_converter.export._values import Encoder, Outgoing
from rdrr_converter.plan import F16_OVERFLOW
from rdrr_converter.report import Progress
from rdrr_converter.sources.gguf_config import read_config
from rdrr_converter.sources.gguf_names import (
    GGUF_ARCHITECTURES,
    ROPE_FREQS,
    ROPE_LONG,
    ROPE_SHORT,
    GgufArchitecture,
)
from rdrr_converter.sources.gguf_rope import divisors, from_factors, from_metadata

F32Array = npt.NDArray[np.float32]

_FILE_TYPES: Mapping[str, int] = MappingProxyType(
    {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 15, "Q5_K": 17,
     "Q6_K": 18, "BF16": 32}
)  # fmt: skip
"""`general.file_type` of a model that is mostly stored so."""

_QUANTIZATION_VERSION = 2
_MOST = 2**32 - 1
"""Whole numbers of metadata are unsigned words."""


def find_row(rule: ArchitectureRule, where: object) -> GgufArchitecture:
    """How llama.cpp writes an architecture.

    Raises:
        ConversionError: It has no row.
    """
    for row in GGUF_ARCHITECTURES.values():
        if {row.hf_class, *row.classes} & set(rule.classes):
            return row
    raise ConversionError(
        f"{rule.name} cannot be written as GGUF by this version of rdrr",
        where=where,
        expected=", ".join(GGUF_ARCHITECTURES),
        hint="export it with `to` safetensors",
    )


def plan_gguf(
    package: Package,
    tensors: Sequence[LogicalTensor],
    rule: ArchitectureRule,
    *,
    lossless: bool,
) -> list[Outgoing]:
    """What becomes of each tensor.

    Raises:
        ConversionError: A tensor has no place in a GGUF, or loses something under `lossless`.
    """
    row = find_row(rule, package.where)
    shift = norm_shift(rule, package.manifest) - row.norm_offset
    stacks = joined_experts(stacked(tensors, rule.stacks))
    _check_experts([name for name, _ in stacks], package)
    outgoing = [_plan(package, name, parts, row, shift) for name, parts in stacks]
    lost = next((one for one in outgoing if one.why), None)
    if lost is not None and lossless:
        raise ConversionError(
            "blocks that a GGUF cannot hold as they are",
            where=f"{package.where}, {lost.parts[0].name}",
            expected="whole rows of whole blocks",
            found=lost.why,
            hint="convert with `q4k_layout` row and `k_tail` ggml, or export without `lossless`",
        )
    return outgoing


def _check_experts(names: Sequence[str], package: Package) -> None:
    """llama.cpp loads experts in all layers or in none.

    Raises:
        ConversionError: Some layers have none.
    """
    dense = [name for name in names if name.endswith(".mlp.gate_proj.weight")]
    if dense and any(is_of_experts(name) for name in names):
        raise ConversionError(
            "llama.cpp wants experts in every layer",
            where=package.where,
            found=f"{len(dense)} layers without, as in {dense[0]}",
            hint="export it with `to` safetensors",
        )


def _plan(
    package: Package,
    name: str,
    parts: tuple[LogicalTensor, ...],
    row: GgufArchitecture,
    shift: float,
) -> Outgoing:
    theirs, first = row.llama_name(name), parts[0]
    if theirs is None:
        raise ConversionError(
            "a tensor has no name in llama.cpp", where=f"{package.where}, {first.name}"
        )
    head = package.manifest.architecture.head_dim
    if first.rows == 1 and not is_of_experts(name):
        order = _interleaved(head, 0, first.columns) if row.is_interleaved(name) else None
        own_shift = shift if first.role == "norm" else 0.0
        return Outgoing(theirs, parts, (first.columns,), "F32", shift=own_shift, vector_order=order)
    dtype, why = ("F32", "") if first.role == "router" else _storage(package, parts)
    if row.is_interleaved(name):
        ordered = partial(_interleaved, head)
        return Outgoing(theirs, parts, first.shape, dtype, why, order=ordered, row_step=head)
    shape = first.shape
    if is_of_experts(name):
        shape = (len(parts), *first.shape)
    elif len(parts) > 1:
        shape = (sum(one.shape[0] for one in parts), *first.shape[1:])
    return Outgoing(theirs, parts, shape, dtype, why)


def _storage(package: Package, parts: Sequence[LogicalTensor]) -> tuple[str, str]:
    """Type of a matrix, and why it is not the stored one."""
    dtypes = sorted({one.dtype.name for one in parts})
    dtype, columns = parts[0].dtype, parts[0].columns
    if len(dtypes) > 1:
        why = f"{' and '.join(dtypes)} in one tensor"
    elif not dtype.is_block:
        return dtype.name, ""
    elif columns % dtype.block_elements:
        why = f"rows of {columns} are not whole {dtype} blocks"
    elif any(one.layout is Layout.COLUMN for one in parts):
        why = f"{dtype} blocks in the layout column hold parts of several rows"
    else:
        return dtype.name, ""
    if any(one.dtype.name == "F32" for one in parts):
        return "F32", why
    readers = [RowReader(package, one) for one in parts]
    largest = max(
        float(np.abs(reader.values(*chunk)).max())
        for reader in readers
        for chunk in reader.chunks()
    )
    return "F16" if largest < F16_OVERFLOW else "F32", why


def _interleaved(head: int, first: int, count: int) -> npt.NDArray[np.intp]:
    """The model's rows in llama.cpp's order: those of a head's two halves alternate."""
    start, row = np.divmod(np.arange(first, first + count), head)
    row, half = np.divmod(row, 2)
    ordered: npt.NDArray[np.intp] = start * head + half * (head // 2) + row
    return ordered


def write_gguf(
    package: Package,
    tensors: Sequence[LogicalTensor],
    outgoing: Sequence[Outgoing],
    rule: ArchitectureRule,
    config: Mapping[str, Any],
    path: Path,
    progress: Progress,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Write the file.

    Args:
        package: The package.
        tensors: Its tensors.
        outgoing: What becomes of them.
        rule: Architecture to write it as.
        config: `config.json` of the model.
        path: File to make.
        progress: Told after each tensor.

    Returns:
        Relative error of each tensor, by llama.cpp's name, and notes.

    Raises:
        ConversionError: Metadata cannot state the model.
        StoreError: The file cannot be written.
    """
    row = find_row(rule, package.where)
    entries, notes = metadata(config, row)
    extra = _rope_divisors(config)
    _check_metadata(entries, extra, package, row, tensors)
    words, more = tokenizer_metadata(package, config["vocab_size"])
    identity = {
        "general.name": package.manifest.model_id,
        "general.file_type": _FILE_TYPES.get(_main_type(outgoing), 0),
        "general.quantization_version": _QUANTIZATION_VERSION,
    }
    with complete_file(path) as partial_path, store_errors(path):
        errors = _write(
            partial_path, row.name, {**identity, **entries, **words}, extra, package, outgoing,
            progress,
        )  # fmt: skip
    return errors, (*notes, *more)


def _rope_divisors(config: Mapping[str, Any]) -> dict[str, F32Array]:
    """Tensors of divisors of frequencies, which stand for llama3 scaling and longrope."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "longrope":
        stated = {ROPE_LONG: scaling["long_factor"], ROPE_SHORT: scaling["short_factor"]}
        return {name: np.asarray(values, np.float32) for name, values in stated.items()}
    if scaling.get("rope_type") != "llama3":
        return {}
    frequencies = int(config["head_dim"] * (config.get("partial_rotary_factor") or 1.0)) // 2
    return {ROPE_FREQS: divisors(scaling, config["rope_theta"], frequencies).astype(np.float32)}


def _check_metadata(
    entries: Mapping[str, Any],
    extra: Mapping[str, F32Array],
    package: Package,
    row: GgufArchitecture,
    tensors: Sequence[LogicalTensor],
) -> None:
    """Read the metadata as that of any GGUF and compare what the model would compute.

    Raises:
        ConversionError: It does not state the package's model.
    """
    names = {tensor.name: tensor for tensor in tensors}
    read = read_config(
        entries,
        row,
        vocab_size=names[EMBEDDING].shape[0],
        tensors=len(tensors),
        tied=HEAD not in names,
        where=package.where,
    )
    values = {name: array.astype(np.float64) for name, array in extra.items()}
    read |= from_metadata(values.get(ROPE_FREQS), read, package.where)
    read |= from_factors(values.get(ROPE_SHORT), values.get(ROPE_LONG), package.where)
    check_config(read, package, find_architecture(read, None, package.where), tensors)


def _main_type(outgoing: Sequence[Outgoing]) -> str:
    sizes: dict[str, int] = {}
    for one in outgoing:
        sizes[one.dtype] = sizes.get(one.dtype, 0) + one.size
    return max(sizes, key=lambda name: sizes[name])


class _Stream:
    """A tensor as gguf-py's writer wants it, of which only a few rows are in memory."""

    def __init__(self, encoder: Encoder, size: int) -> None:
        self._encoder = encoder
        self.nbytes = size

    def tofile(self, file: BinaryIO) -> None:
        """Write all of it."""
        for chunk in self._encoder.chunks():
            file.write(chunk.tobytes())


def _write(
    path: Path,
    name: str,
    entries: Mapping[str, Any],
    extra: Mapping[str, F32Array],
    package: Package,
    outgoing: Sequence[Outgoing],
    progress: Progress,
) -> dict[str, float]:
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, name)
    try:
        for key, value in entries.items():
            _add(writer, key, value)
        for tensor, values in extra.items():
            writer.add_tensor_info(tensor, values.shape, values.dtype, values.nbytes)
        for one in outgoing:
            kind = GGMLQuantizationType[one.dtype]
            writer.add_tensor_info(one.name, one.shape, np.dtype(np.float32), one.size, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for values in extra.values():
            writer.write_tensor_data(values)
        errors: dict[str, float] = {}
        for one in outgoing:
            encoder = Encoder(package, one)
            writer.write_tensor_data(cast(Any, _Stream(encoder, one.size)))
            errors[one.name] = encoder.relative_rmse
            progress.advance(one.name, one.weights)
        return errors
    finally:
        writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    """An entry in the type that llama.cpp expects.

    Raises:
        ConversionError: It does not fit that type.
    """
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        if not 0 <= value <= _MOST:
            raise ConversionError(
                "a GGUF cannot state this number",
                where=key,
                expected=f"0 to {_MOST}",
                found=value,
            )
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """A file to write, which gets the name `path` if the block ends without an error."""
    with store_errors(path):
        make_folder(path.parent)
    partial_path = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    try:
        yield partial_path
        with store_errors(path):
            flush_file(partial_path)
            rename_durably(partial_path, path)
    finally:
        with suppress(OSError):  # the error that led here is the one to report
            partial_path.unlink()
