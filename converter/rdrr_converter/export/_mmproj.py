"""The vision tower of a package as a GGUF file of its own, which llama.cpp calls mmproj."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from rdrr_format.errors import ConversionError, RdrrError
from rdrr_format.stores import store_errors
from rdrr_manifests.graph.vision import PATCHES as PATCH_EMBEDDING
from rdrr_manifests.graph.vision import POSITIONS
from rdrr_manifests.logical import LogicalTensor, RowReader
from rdrr_manifests.models import Processor, Vision
from rdrr_manifests.package import Package

from rdrr_converter.architectures import ArchitectureRule, read_block
from rdrr_converter.checkpoint.outgoing import OutgoingTensor, Stack
from rdrr_converter.export._gguf import QUANTIZATION_VERSION, file_type
from rdrr_converter.export._gguf_container import atomic_file, write_container
from rdrr_converter.export._result import ExportedTensor
from rdrr_converter.export._stacks import stacked
from rdrr_converter.gguf.architectures import MMPROJ
from rdrr_converter.gguf.mmproj import PATCHES, POSITION_TABLE, llama_name, read_tower, write_tower
from rdrr_converter.gguf.settings import Entries
from rdrr_converter.gguf.storage_types import storage_type
from rdrr_converter.progress import Progress
from rdrr_converter.reading.image_processor import processor_of

_NOTE = (
    "llama.cpp resizes images with another filter, within bounds of 8 to 4,096 tokens of its own, "
    "and computes the mergers of the tower with the activation of its layers"
)

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
        frames: The kernels of the first convolution, one for each frame.
        weights: Number of values of all tensors.
        notes: Notes for the user.
    """

    path: Path
    entries: Entries
    outgoing: Sequence[OutgoingTensor]
    frames: dict[str, npt.NDArray[Any]]
    weights: int
    notes: tuple[str, ...]

    def write(self, package: Package, progress: Progress) -> tuple[ExportedTensor, ...]:
        """Write the file, and return what was written.

        Raises:
            StoreError: The file cannot be written.
        """
        with atomic_file(self.path) as path, store_errors(self.path):
            errors = write_container(
                path, MMPROJ, self.entries, self.frames, package, self.outgoing, progress
            )
        frames = (_exported_frame(name, frame, package) for name, frame in self.frames.items())
        return (*frames, *(ExportedTensor.of(each, errors[each.name]) for each in self.outgoing))


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
    if rule.tower is None:
        raise _unknown(package, rule.name)
    entries = write_tower(vision, processor)
    by_name = {tensor.name: tensor for tensor in tensors}
    _check(entries | {"general.architecture": MMPROJ}, by_name, package, rule.tower)
    stacks = list(stacked(tensors, rule.tower.stacks))
    patches = f"{PATCH_EMBEDDING}.weight"
    outgoing = [
        _plan(package, stack, vision.taps, lossless=lossless)
        for stack in stacks
        if stack[0] != patches
    ]
    identity: Entries = {
        "general.name": package.manifest.model_id,
        "general.file_type": file_type(outgoing),
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    return TowerFile(
        path,
        identity | entries,
        outgoing,
        _frames(package, by_name[patches], processor),
        sum(prod(tensor.shape) for tensor in tensors),
        (_NOTE,) if processor.video is None else (_NOTE, _WITHOUT_VIDEOS),
    )


def _exported_frame(name: str, frame: npt.NDArray[Any], package: Package) -> ExportedTensor:
    stored = package.manifest.tensors[f"{PATCH_EMBEDDING}.weight"].dtype
    dtype = {2: "F16", 4: "F32"}[frame.itemsize]
    return ExportedTensor(name, frame.shape, stored, dtype, frame.nbytes, False, "", 0.0)


def _unknown(package: Package, what: object) -> ConversionError:
    return ConversionError(
        "this version cannot write the vision tower as a file for llama.cpp",
        where=package.where,
        expected="a tower like that of Qwen 3 VL",
        found=what,
    )


def _plan(
    package: Package, stack: Stack, taps: tuple[int, ...], *, lossless: bool
) -> OutgoingTensor:
    name, parts = stack
    theirs, first = llama_name(name, taps), parts[0]
    if theirs is None:
        raise ConversionError(
            "llama.cpp has no name for this tensor", where=f"{package.where}, {first.name}"
        )
    if len(first.shape) == 1:
        return OutgoingTensor(theirs, parts, (sum(part.columns for part in parts),), "F32")
    # llama.cpp interpolates positions in F32.
    dtype, why = storage_type(package, parts) if first.role == "matmul" else ("F32", "")
    if why and lossless:
        raise ConversionError(
            "a GGUF cannot hold these blocks without changing them",
            where=f"{package.where}, {first.name}",
            found=why,
            hint="export without `lossless`",
        )
    shape = (sum(part.rows for part in parts), first.columns)
    return OutgoingTensor(theirs, parts, shape, dtype, why)


def _frames(
    package: Package, whole: LogicalTensor, processor: Processor
) -> dict[str, npt.NDArray[Any]]:
    """Return the kernels of the first convolution, which is small, in F16 if it is stored so."""
    size, frames = processor.patch_size, processor.temporal_patch_size
    values = RowReader(package, whole).values(0, whole.rows)
    kernels = values.reshape(whole.rows, -1, frames, size, size)
    dtype = np.float16 if whole.dtype.name == "F16" else np.float32
    return {
        name: np.ascontiguousarray(kernels[:, :, frame], dtype)
        for frame, name in enumerate(PATCHES)
    }


def _check(
    entries: Entries,
    tensors: Mapping[str, LogicalTensor],
    package: Package,
    tower: ArchitectureRule,
) -> None:
    """Read the metadata back like that of any file, and compare it with the package's blocks.

    Raises:
        ConversionError: It does not describe the tower and the recipe of images.
    """
    manifest = package.manifest
    positions = tensors.get(f"{POSITIONS}.weight")
    try:
        values, recipe = read_tower(entries, {POSITION_TABLE: positions}, package.where)
        config = tower.config(values, package.where)
        described = Vision.model_validate(read_block(tower.sizes, config))
        rebuilt = processor_of(recipe, {}, package.where)
    except (RdrrError, ValidationError) as error:
        raise _unknown(package, " ".join(str(error).split())) from error
    of_images = manifest.processor and manifest.processor.model_copy(update={"video": None})
    if described != manifest.vision or rebuilt != of_images:
        raise _unknown(package, "another")
