"""Planning and describing a GGUF: the type of each tensor, the order of its rows, the metadata.

Blocks are copied if a GGUF can hold them, which needs the row-major layout and a row length that is
a multiple of the block size. Other blocks are decoded to F16, or to F32 if a value is too large for
F16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError
from rdrr_format.stores import store_errors
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.package import Package

from rdrr_converter.architectures import ArchitectureRule
from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.export._check import check_complete, norm_shift
from rdrr_converter.export._gguf_check import check_metadata, frequency_divisors
from rdrr_converter.export._gguf_container import atomic_file, write_container
from rdrr_converter.export._gguf_factors import with_factors
from rdrr_converter.export._gguf_tokenizer import tokenizer_metadata
from rdrr_converter.export._stacks import is_expert_stack, join_experts, stacked
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.architectures import (
    GGUF_ARCHITECTURES,
    UNKNOWN_TO_LLAMA_CPP,
)
from rdrr_converter.gguf.config import write_config
from rdrr_converter.gguf.draft_head import with_further_layer
from rdrr_converter.gguf.families.apertus import stated_parameters
from rdrr_converter.gguf.families.encoders import from_position_zero
from rdrr_converter.gguf.families.gemma4 import without_padding
from rdrr_converter.gguf.file import FILE_TYPES
from rdrr_converter.gguf.mmproj import write_text
from rdrr_converter.gguf.pooling import pooling_entries
from rdrr_converter.gguf.storage_types import storage_type
from rdrr_converter.progress import Progress

F32Array = npt.NDArray[np.float32]

_F32_ROLES = ("router", "bias", "norm")
"""Roles of tensors that llama.cpp reads as F32, also those with several rows."""

QUANTIZATION_VERSION = 2

_EXPERT_BIASES = (
    ".shared_experts.up_proj.bias",
    ".shared_experts.down_proj.bias",
    "_latent_proj.bias",
)


def find_gguf_architecture(rule: ArchitectureRule, package: Package) -> GgufArchitecture:
    """Return the GGUF conventions of an architecture for a package.

    Raises:
        ConversionError: This version does not know them.
    """
    is_causal = package.manifest.inference.attention.causal
    has_experts = package.manifest.moe_config is not None
    for row in GGUF_ARCHITECTURES.values():
        if (
            row.is_causal is is_causal
            and row.has_experts in (None, has_experts)
            and {row.hf_class, *row.classes} & set(rule.classes)
        ):
            return row
    unknown = rule.name in UNKNOWN_TO_LLAMA_CPP
    raise ConversionError(
        f"llama.cpp has no architecture for {rule.name}"
        if unknown
        else f"this version of rdrr cannot export {rule.name} as GGUF",
        where=package.where,
        expected=", ".join(GGUF_ARCHITECTURES),
        hint="export it with `to` safetensors",
    )


def plan_gguf(
    package: Package,
    tensors: Sequence[LogicalTensor],
    rule: ArchitectureRule,
    *,
    lossless: bool,
) -> list[OutgoingTensor]:
    """Plan the tensors of a GGUF.

    Raises:
        ConversionError: A GGUF cannot hold a tensor, or holds it only with changed values although
            `lossless` is set.
    """
    row = find_gguf_architecture(rule, package).for_tensors(tensor.name for tensor in tensors)
    _, tensors = from_position_zero(package.manifest, tensors)
    shift = norm_shift(rule, package.manifest) - row.norm_offset
    row.check(package)
    elsewhere = [part for part in (row.in_metadata, row.left_out) if part]
    written = [tensor for tensor in tensors if not any(part in tensor.name for part in elsewhere)]
    stacks = join_experts(stacked(written, [stack for stack in rule.stacks if row.stores(stack)]))
    stacks = list(row.join(stacks))
    if not row.dense_layers:
        _check_experts([name for name, _ in stacks], package)
    outgoing = [_plan(package, name, parts, row, shift) for name, parts in stacks]
    check_complete(package, written, outgoing, rule)
    if row.factors_in_weights:
        outgoing = with_factors(package, outgoing, lossless=lossless)
    if lossless:
        _check_lossless(package, outgoing)
    return outgoing


def plan_layers(
    package: Package,
    tensors: Sequence[LogicalTensor],
    names: Mapping[str, str],
    *,
    lossless: bool,
) -> list[OutgoingTensor]:
    """Plan the tensors of the layers after the pooling.

    Args:
        package: The package.
        tensors: Its tensors.
        names: llama.cpp's names of those of the layers, by their stored names.
        lossless: Whether all values must stay as they are.

    Raises:
        ConversionError: A GGUF holds a tensor only with changed values although `lossless` is set.
    """
    outgoing = [
        OutgoingTensor(
            names[tensor.stored], (tensor,), tensor.shape, *storage_type(package, (tensor,))
        )
        for tensor in tensors
        if tensor.stored in names
    ]
    if lossless:
        _check_lossless(package, outgoing)
    return outgoing


def _check_lossless(package: Package, outgoing: Sequence[OutgoingTensor]) -> None:
    """Check that all blocks can be copied.

    Raises:
        ConversionError: Some have to be decoded.
    """
    lost = next((tensor for tensor in outgoing if tensor.why), None)
    if lost is not None:
        raise ConversionError(
            "a GGUF cannot hold these blocks without changing them",
            where=f"{package.where}, {lost.parts[0].name}",
            expected="row-major blocks, and a row length that is a multiple of the block size",
            found=lost.why,
            hint="convert with `q4k_layout` row and `k_tail` ggml, or export without `lossless`",
        )


def _check_experts(names: Sequence[str], package: Package) -> None:
    """Check that all layers or none have experts, since llama.cpp loads no other models.

    Raises:
        ConversionError: Some layers have experts and some have none.
    """
    dense = [name for name in names if name.endswith(".mlp.gate_proj.weight")]
    if dense and any(is_expert_stack(name) for name in names):
        raise ConversionError(
            "llama.cpp needs experts in every layer",
            where=package.where,
            found=f"{len(dense)} layers without experts, for example that of {dense[0]}",
            hint="export it `to` safetensors",
        )


def _plan(
    package: Package,
    name: str,
    parts: tuple[LogicalTensor, ...],
    row: GgufArchitecture,
    shift: float,
) -> OutgoingTensor:
    gguf_name, first = row.llama_name(name), parts[0]
    if gguf_name is None:
        raise ConversionError(
            "llama.cpp has no name for this tensor", where=f"{package.where}, {first.name}"
        )
    head = package.manifest.architecture.head_dim
    if name.endswith(_EXPERT_BIASES):
        raise ConversionError(
            "llama.cpp has no biases in shared experts", where=f"{package.where}, {first.name}"
        )
    planned = row.plan(package, name, gguf_name, parts)
    if planned is not None:
        return planned
    if len(parts) > 1 and len(first.shape) == 1:
        total = sum(part.columns for part in parts)
        return OutgoingTensor(gguf_name, parts, (total,), "F32")
    if first.rows == 1 and not is_expert_stack(name):
        order = _interleaved(head, 0, first.columns) if row.is_interleaved(name) else None
        own_shift = shift if first.role == "norm" and not row.is_plain_norm(name) else 0.0
        return OutgoingTensor(
            gguf_name, parts, (first.columns,), "F32", shift=own_shift, vector_order=order
        )
    dtype, why = ("F32", "") if first.role in _F32_ROLES else storage_type(package, parts)
    if row.is_interleaved(name):
        ordered = partial(_interleaved, head)
        return OutgoingTensor(
            gguf_name, parts, first.shape, dtype, why, order=ordered, row_step=head
        )
    shape = first.shape
    if is_expert_stack(name):
        shape = (len(parts), *first.shape)
    elif len(parts) > 1:
        shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return OutgoingTensor(gguf_name, parts, shape, dtype, why)


def _interleaved(head: int, first: int, count: int) -> npt.NDArray[np.intp]:
    """Return the model's row indices in llama.cpp's order, where the halves of a head alternate."""
    start, row = np.divmod(np.arange(first, first + count), head)
    row, half = np.divmod(row, 2)
    ordered: npt.NDArray[np.intp] = start * head + half * (head // 2) + row
    return ordered


def write_gguf(
    package: Package,
    tensors: Sequence[LogicalTensor],
    outgoing: Sequence[OutgoingTensor],
    rule: ArchitectureRule,
    config: Mapping[str, Any],
    path: Path,
    progress: Progress,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Write the file.

    Args:
        package: The package.
        tensors: Its tensors.
        outgoing: The planned tensors of the GGUF.
        rule: Architecture of the GGUF.
        config: Content of `config.json` of the model.
        path: The file to create.
        progress: Counter that is advanced after each tensor.

    Returns:
        Relative error of each tensor, by llama.cpp's name, and notes.

    Raises:
        ConversionError: The metadata cannot describe the model.
        StoreError: The file cannot be written.
    """
    row = find_gguf_architecture(rule, package)
    manifest = package.manifest
    before = manifest.inference.output.position_embedding_offset
    if before:
        longest = config["max_position_embeddings"] - before
        config = {**config, "max_position_embeddings": longest}
    entries, notes = write_config(config, row)
    entries = with_further_layer(entries, row, outgoing)
    entries |= write_text(manifest.vision, manifest.inference.rope, row.name)
    pooling, pooling_notes = pooling_entries(package, row)
    extra: dict[str, npt.NDArray[Any]] = dict(frequency_divisors(config))
    tokenizer_entries, tokenizer_notes = tokenizer_metadata(package, config["vocab_size"], row.name)
    stated = {**tokenizer_entries, **entries}
    check_metadata(stated, extra, package, row, tensors, without_padding(config))
    identity = {
        "general.name": package.manifest.model_id,
        "general.file_type": file_type(outgoing),
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    if row.in_metadata is not None:
        entries |= stated_parameters(package)
    with atomic_file(path) as partial_path, store_errors(path):
        everything = {**identity, **entries, **pooling, **tokenizer_entries}
        errors = write_container(
            partial_path,
            row.name,
            everything,
            {**extra, **row.further(package)},
            package,
            outgoing,
            progress,
        )
    return errors, (*notes, *pooling_notes, *tokenizer_notes)


def file_type(outgoing: Sequence[OutgoingTensor]) -> int:
    """Return ggml's number of the type of most of the weights."""
    sizes: dict[str, int] = {}
    for tensor in outgoing:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size
    return FILE_TYPES.get(max(sizes, key=lambda name: sizes[name]), 0)
