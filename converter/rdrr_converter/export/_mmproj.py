"""The vision tower of a package as a GGUF file of its own, which llama.cpp calls mmproj."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import ConversionError, RdrrError
from rdrr_format.stores import store_errors
from rdrr_manifests.graph.vision import PATCHES as PATCH_EMBEDDING
from rdrr_manifests.logical import LogicalTensor, RowReader
from rdrr_manifests.models import Processor, Vision
from rdrr_manifests.package import Package

from rdrr_converter.architectures import ArchitectureRule, find_by_name, read_block
from rdrr_converter.checkpoint.outgoing import OutgoingTensor, Stack
from rdrr_converter.export._gguf import QUANTIZATION_VERSION, file_type, find_gguf_architecture
from rdrr_converter.export._gguf_container import atomic_file, write_container
from rdrr_converter.export._result import ExportedTensor
from rdrr_converter.export._stacks import stacked, transpose
from rdrr_converter.gguf.architectures import MMPROJ
from rdrr_converter.gguf.mmproj import read_tower, write_tower
from rdrr_converter.gguf.settings import Entries
from rdrr_converter.gguf.storage_types import decoded_type, storage_type
from rdrr_converter.gguf.tower_families import FAMILIES
from rdrr_converter.gguf.towers import LIMITS, PATCHES, POSITION_TABLE, TowerFamily
from rdrr_converter.progress import Progress
from rdrr_converter.reading.image_processor import processor_of
from rdrr_converter.reading.tower import tower_values

_LIMITS = ".limits"
"""How the names of the tensors end that hold the limits of a product."""

_WITHOUT_VIDEOS = (
    "a GGUF has no settings of videos: a package that is converted from it sees images only"
)


@dataclass(frozen=True)
class TowerFile:
    """A planned file of a vision tower.

    Attributes:
        path: The file to create.
        entries: Its metadata.
        outgoing: Its tensors.
        further: Tensors that the package has in another form: the kernels of the first convolution,
            one for each frame, and the limits of products.
        weights: Number of values of all tensors.
        notes: Notes for the user.
    """

    path: Path
    entries: Entries
    outgoing: Sequence[OutgoingTensor]
    further: dict[str, npt.NDArray[Any]]
    weights: int
    notes: tuple[str, ...]

    def write(self, package: Package, progress: Progress) -> tuple[ExportedTensor, ...]:
        """Write the file, and return what was written.

        Raises:
            StoreError: The file cannot be written.
        """
        with atomic_file(self.path) as path, store_errors(self.path):
            errors = write_container(
                path, MMPROJ, self.entries, self.further, package, self.outgoing, progress
            )
        further = (_exported(name, values) for name, values in self.further.items())
        return (*further, *(ExportedTensor.of(each, errors[each.name]) for each in self.outgoing))


def plan_tower(
    package: Package,
    tensors: Sequence[LogicalTensor],
    rule: ArchitectureRule,
    path: Path,
    *,
    lossless: bool,
) -> TowerFile:
    """Plan the file of the vision tower of a package.

    Args:
        package: The package.
        tensors: The tensors of its tower.
        rule: The architecture of the text model.
        path: The file to create.
        lossless: Refuse to change any value.

    Raises:
        ConversionError: There is no tower, or llama.cpp has none like it.
    """
    vision, processor = package.manifest.vision, package.manifest.processor
    if vision is None or processor is None:
        raise ConversionError(
            "there is no vision tower with a recipe of images to write",
            where=package.where,
            expected="a package that sees",
        )
    row = find_gguf_architecture(rule, package)
    family = FAMILIES.get(row.name)
    tower = rule.tower if family is None else rule.tower or _tower_of(family)
    if family is None or tower is None:
        raise _unknown(package, rule.name)
    forms = _Forms(package, family, tower, vision, processor)
    by_name = {tensor.name: tensor for tensor in tensors}
    stacks = stacked(tensors, tower.stacks)
    outgoing = [forms.plan(stack, lossless=lossless) for stack in stacks if forms.is_stored(stack)]
    further = {**forms.kernels(by_name[f"{PATCH_EMBEDDING}.weight"]), **forms.limits(tensors)}
    entries = write_tower(family, vision, processor)
    _check(
        entries | {"general.architecture": MMPROJ}, {t.name: t for t in outgoing} | further, forms
    )
    identity: Entries = {
        "general.name": package.manifest.model_id,
        "general.file_type": file_type(outgoing),
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    return TowerFile(
        path,
        identity | entries,
        outgoing,
        further,
        sum(prod(tensor.shape) for tensor in tensors),
        (family.note,) if processor.video is None else (family.note, _WITHOUT_VIDEOS),
    )


def _tower_of(family: TowerFamily) -> ArchitectureRule | None:
    """Return the description of a tower whose text model alone has none."""
    rule = find_by_name(family.wrapper)
    return None if rule is None else rule.tower


def _exported(name: str, values: npt.NDArray[Any]) -> ExportedTensor:
    dtype = {2: "F16", 4: "F32"}[values.itemsize]
    return ExportedTensor(name, values.shape, dtype, dtype, values.nbytes, False, "", 0.0)


def _unknown(package: Package, what: object) -> ConversionError:
    return ConversionError(
        "this version cannot write the vision tower as a file for llama.cpp",
        where=package.where,
        expected="a tower as Qwen 3 VL, Gemma 3, Gemma 4 or Idefics 3 publish theirs",
        found=what,
    )


@dataclass(frozen=True)
class _Forms:
    """The forms in which llama.cpp has the tensors of a tower.

    Attributes:
        package: The package.
        family: The kind of tower.
        tower: Its description.
        vision: The manifest's `vision`.
        processor: The manifest's `processor`.
    """

    package: Package
    family: TowerFamily
    tower: ArchitectureRule
    vision: Vision
    processor: Processor

    def is_stored(self, stack: Stack) -> bool:
        """Return whether a tensor is written as such; `kernels` and `limits` write the others."""
        return stack[0] != f"{PATCH_EMBEDDING}.weight" and not stack[0].endswith(_LIMITS)

    def plan(self, stack: Stack, *, lossless: bool) -> OutgoingTensor:
        """Plan a tensor or stack of tensors.

        Raises:
            ConversionError: llama.cpp has no such tensor, or only one with changed values although
                `lossless` is set.
        """
        name, parts = stack
        first, theirs = parts[0], self._llama_name(name)
        order = self._order(name)
        if len(first.shape) == 1:
            size = sum(part.columns for part in parts)
            shift = self.family.offsets.get(theirs, 0.0)
            return OutgoingTensor(theirs, parts, (size,), "F32", shift=shift, vector_order=order)
        # llama.cpp interpolates positions in F32.
        dtype, why = storage_type(self.package, parts) if first.role == "matmul" else ("F32", "")
        is_transposed = self.tower.is_transposed(name)
        if is_transposed and DTYPES[dtype].is_block:
            dtype, why = decoded_type(self.package, parts), f"{dtype} blocks cannot be transposed"
        if why and lossless:
            raise ConversionError(
                "a GGUF cannot hold these blocks without changing them",
                where=f"{self.package.where}, {first.name}",
                found=why,
                hint="export without `lossless`",
            )
        rows, columns = sum(part.rows for part in parts), first.columns
        planned = OutgoingTensor(theirs, parts, (rows, columns), dtype, why)
        if theirs == POSITION_TABLE and self.vision.position_sampling == "separate":
            return replace(planned, shape=(2, rows // 2, columns))
        if is_transposed:
            return replace(planned, shape=(columns, rows), arrange=transpose)
        if order is not None:
            taken = partial(_rows, order)
            return replace(planned, order=taken, row_step=self.vision.head_dim)
        return planned

    def kernels(self, whole: LogicalTensor) -> dict[str, npt.NDArray[Any]]:
        """Return the kernels of the first convolution, in F16 if they are stored so.

        They are small: [outputs, channels, height, width] for each frame.
        """
        size, frames = self.processor.patch_size, self.processor.temporal_patch_size
        values = RowReader(self.package, whole).values(0, whole.rows)
        if self.processor.channel_order == "last":
            kernels = values.reshape(whole.rows, frames, size, size, -1).transpose(0, 4, 1, 2, 3)
        else:
            kernels = values.reshape(whole.rows, -1, frames, size, size)
        dtype = np.float16 if whole.dtype.name == "F16" else np.float32
        return {
            name: np.ascontiguousarray(kernels[:, :, frame], dtype)
            for frame, name in enumerate(PATCHES[:frames])
        }

    def limits(self, tensors: Sequence[LogicalTensor]) -> dict[str, npt.NDArray[Any]]:
        """Return the limits of products, each a tensor of one value."""
        values: dict[str, npt.NDArray[Any]] = {}
        for tensor in tensors:
            if tensor.name.endswith(_LIMITS):
                stored = RowReader(self.package, tensor).values(0, tensor.rows).reshape(-1)
                for ending, limit in zip(LIMITS, stored, strict=True):
                    name = self._llama_name(f"{tensor.name.removesuffix(_LIMITS)}.{ending}")
                    values[name] = np.array([limit], np.float32)
        return values

    def _llama_name(self, name: str) -> str:
        theirs = self.family.llama_name(name, self.vision.taps)
        if theirs is None:
            raise ConversionError(
                "llama.cpp has no name for this tensor", where=f"{self.package.where}, {name}"
            )
        return theirs

    def _order(self, name: str) -> npt.NDArray[np.intp] | None:
        """Return the model's rows of a matrix, or elements of a vector, in llama.cpp's order."""
        rule = self.tower.row_order.get(re.sub(r"(?<=\.layers\.)\d+(?=\.)", "{layer}", name))
        if rule is None:
            return None
        sizes = {name: getattr(self.vision, name) for name in ("head_dim", "num_attention_heads")}
        return np.argsort(rule(self.tower.config(sizes, self.package.where)))


def _rows(order: npt.NDArray[np.intp], first: int, count: int) -> npt.NDArray[np.intp]:
    return order[first : first + count]


def _check(entries: Entries, tensors: Mapping[str, Any], forms: _Forms) -> None:
    """Read the metadata back like that of any file, and compare it with the package's blocks.

    Raises:
        ConversionError: It does not describe the tower and the recipe of images.
    """
    package, tower, manifest = forms.package, forms.tower, forms.package.manifest
    layers = manifest.architecture.hidden_size_per_layer_input
    text = {"hidden_size_per_layer_input": layers}
    try:
        stated = read_tower(forms.family, entries, tensors, package.where, text)
        whole = stated.around({**text, **stated.text}, forms.family)
        config = tower.config(tower_values(whole, tower), package.where)
        sizes = {"output_size": forms.vision.output_size, **read_block(tower.sizes, config)}
        described = Vision.model_validate(sizes)
        rebuilt = processor_of(stated.recipe, whole, package.where)
    except (RdrrError, ValidationError) as error:
        raise _unknown(package, " ".join(str(error).split())) from error
    if described != forms.vision or rebuilt != forms.processor.model_copy(update={"video": None}):
        raise _unknown(package, "another")
