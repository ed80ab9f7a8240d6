"""Vision towers in files of their own, which llama.cpp calls mmproj: read, and written.

The architecture of such a file is `clip`, and its projector says what the tower is:
`gguf.tower_families` has the kinds that this version knows. The kernel of the first convolution is
stored as a tensor for each frame that it covers. What llama.cpp must know of a tower to run the
text model is in the text model's file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.graph.vision import VISION
from rdrr_manifests.models import Processor, Rope, Vision

from rdrr_converter.architectures import ArchitectureRule, find_architecture
from rdrr_converter.checkpoint.source import SCALARS, Source, SourceTensor
from rdrr_converter.gguf.architectures import MMPROJ
from rdrr_converter.gguf.file import GgufFile, GgufTensor, read_gguf
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import Entries
from rdrr_converter.gguf.stored import decoded, map_tensor, read_tensor
from rdrr_converter.gguf.tower_families import FAMILIES, QWEN
from rdrr_converter.gguf.towers import (
    LIMITS,
    PATCHES,
    StatedTower,
    TowerFamily,
    TowerMetadata,
)

_PROCESSOR = "preprocessor_config.json"
_ACTIVATIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"gelu": ("use_gelu", "gelu_pytorch_tanh"), "silu": ("use_silu", "silu")}
)
"""Keys of the metadata and values of the configuration, by the activation in the manifest."""

_HARMLESS = ("image_size", "n_wa_pattern", "projection_dim", "projector_type")
"""Keys that say nothing more: tensors have the size of what they project to, and no tower that this
version knows has windows."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""The number of the layer or tap in a name."""

_OF_SOUND = ("a.", "mm.a.")
"""How the names of the tensors of an audio tower begin, which may be in the same file."""


def is_mmproj(path: Path) -> bool:
    """Return whether the name of a file says that it holds a vision tower and no model."""
    return "mmproj" in path.name.lower()


def with_tower(source: Source, metadata: Mapping[str, Any], path: Path) -> Source:
    """Return a model with the vision tower of another file.

    Args:
        source: The text model.
        metadata: The metadata of its file.
        path: The file of the tower.

    Raises:
        SourceError: The file is damaged, or does not belong to the model.
        ConversionError: The tower is of a kind that this version does not know.
    """
    text = metadata.get("general.architecture")
    family = FAMILIES.get(str(text))
    if family is None:
        raise ConversionError(
            "this version knows no vision tower in a file of its own for the architecture",
            where=source.path,
            expected=", ".join(FAMILIES),
            found=text,
        )
    file = read_gguf(path)
    stated = read_tower(family, file.metadata, file.tensors, path, source.config)
    layers = stated.vision.get("deepstack_visual_indexes", [])
    _check_taps(metadata.get(f"{text}.n_deepstack_layers", len(layers)), len(layers), path, source)
    config = {**source.config, **stated.text}
    if family is QWEN:
        scaling = {"rope_type": "default", **(config.get("rope_scaling") or {})}
        scaling |= _read_sections(metadata, f"{text}.rope.dimension_sections", source.path)
        config["rope_scaling"] = scaling
    config = stated.around(config, family)
    rule = find_architecture(config, where=path).tower
    if rule is None:
        raise ConversionError("the architecture has no vision tower", where=path, found=text)
    of_sound = [name for name in file.tensors if name.startswith(_OF_SOUND)]
    tensors = {tensor.name: tensor for tensor in _tensors(file, family, rule, tuple(layers))}
    notes = [f"{path.name}: its {len(of_sound)} tensors of an audio tower are left out"]
    return replace(
        source,
        config=config,
        tensors={**source.tensors, **tensors},
        generated={**source.generated, _PROCESSOR: json.dumps(stated.recipe).encode()},
        notes=(*source.notes, *notes[: len(of_sound)]),
    )


def _check_taps(of_text: int, of_tower: int, path: Path, source: Source) -> None:
    if of_text != of_tower:
        raise SourceError(
            "the tower and the model do not belong together",
            where=f"{path}, clip.vision.is_deepstack_layers",
            expected=f"{of_text} layers, as in {source.path.name}",
            found=of_tower,
        )


def with_tower_beside(source: Source, metadata: Mapping[str, Any]) -> Source:
    """Return a model with the vision tower in the only such file beside it, and say so."""
    folder = source.path if source.path.is_dir() else source.path.parent
    files = sorted(file for file in folder.glob("*.gguf") if is_mmproj(file))
    if not files:
        return source
    names = ", ".join(file.name for file in files)
    if len(files) > 1:
        note = f"there are several vision towers beside it: `mmproj` takes one of {names}"
        return replace(source, notes=(*source.notes, note))
    try:
        read = with_tower(source, metadata, files[0])
    except (SourceError, ConversionError) as error:
        note = f"the vision tower in {names} beside it is not converted: {error}"
        return replace(source, notes=(*source.notes, note))
    note = f"the vision tower in {names} beside it is converted too"
    return replace(read, notes=(*read.notes, note))


def read_tower(
    family: TowerFamily,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any],
    where: object,
    text: Mapping[str, Any],
) -> StatedTower:
    """Return the configuration of a tower and the settings of its image processor.

    Args:
        family: The kind of tower that the text model has.
        metadata: Metadata of the file.
        tensors: Its tensors, whose shapes state what the metadata does not.
        where: The file, for messages.
        text: Configuration of the text model.

    Raises:
        SourceError: A size is missing or impossible.
        ConversionError: The tower is of a kind that this version does not know.
    """
    kind = metadata.get("general.architecture")
    projector = metadata.get("clip.projector_type", metadata.get("clip.vision.projector_type"))
    if kind != MMPROJ or projector != family.projector:
        raise ConversionError(
            "not a vision tower that this version knows for the model",
            where=where,
            expected=f"{MMPROJ} with {family.stated_in} {family.projector}",
            found=kind if kind != MMPROJ else projector,
        )
    read = GgufMetadata(metadata, "clip.vision", where)
    sizes = {ours: read.size(theirs) for theirs, ours in family.sizes.items()}
    stated = family.read(TowerMetadata(read, tensors, sizes, text))
    stated.vision[family.activation] = _activation(metadata, family, where)
    unread = [key for key, _ in read.unread() if key not in _HARMLESS]
    if unread:
        raise ConversionError(
            "the metadata of the vision tower has unknown keys",
            where=where,
            found=", ".join(f"clip.vision.{key}" for key in unread),
        )
    return stated


def write_tower(family: TowerFamily, vision: Vision, processor: Processor) -> Entries:
    """Return the metadata of a tower's file; what it cannot express is found on reading it back."""
    key, _ = _ACTIVATIONS.get(vision.activation, ("", ""))
    of_vision = {
        "attention.head_count": vision.num_attention_heads,
        "attention.layer_norm_epsilon": vision.norm_eps,
        "block_count": vision.num_layers,
        "embedding_length": vision.hidden_size,
        "feed_forward_length": vision.intermediate_size,
        "image_mean": list(processor.mean),
        "image_std": list(processor.deviation),
        "patch_size": processor.patch_size,
        "projection_dim": vision.output_size,
        **family.write(vision, processor),
    }
    return {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        family.stated_in: family.projector,
        **({f"clip.{key}": True} if key else {}),
        **{f"clip.vision.{name}": value for name, value in of_vision.items()},
    }


def write_text(vision: Vision | None, rope: Rope, architecture: str) -> Entries:
    """Return what the file of a text model states about its tower."""
    if vision is None or architecture not in QWEN.texts:
        return {}
    entries: Entries = {f"{architecture}.n_deepstack_layers": len(vision.taps)}
    if rope.mrope_section is not None and rope.mrope_interleaved:
        entries[f"{architecture}.rope.dimension_sections"] = [*rope.mrope_section, 0]
    return entries


def _tensors(
    file: GgufFile, family: TowerFamily, rule: ArchitectureRule, taps: tuple[int, ...]
) -> Iterator[SourceTensor]:
    """Yield the tensors of a tower with the names and the form of a checkpoint."""
    known = {row.name for row in rule.tensors} | {row.name for row in rule.stacks}
    for tensor in file.tensors.values():
        if tensor.name in PATCHES or tensor.name.startswith(_OF_SOUND):
            continue
        name = family.our_name(tensor.name, taps, file.path)
        stem, _, ending = name.rpartition(".")
        limited = f"{stem}.limits" if ending in LIMITS else name
        row = _NUMBER.sub("{layer}", limited)
        if row not in known:
            message = "a tensor of the vision tower is unknown"
            raise SourceError(message, where=file.path, found=tensor.name)
        if ending in LIMITS:
            scalar = read_tensor(tensor, _name_of_limit(rule, row, ending, name))
            yield replace(scalar, shape=()) if tensor.shape == (1,) else scalar
            continue
        whole = decoded(read_tensor(tensor, rule.published_name(name)))
        offset = family.offsets.get(tensor.name, 0.0)
        yield replace(whole, offset=-offset) if offset else whole
    frames = [file.tensors[name] for name in PATCHES if name in file.tensors]
    yield _joined_frames(frames, rule, file.path)


def _name_of_limit(rule: ArchitectureRule, row: str, ending: str, name: str) -> str:
    """Return the name in checkpoints of a limit of a product.

    Args:
        rule: The tower.
        row: Name of the rule of all limits of the product.
        ending: Which limit it is.
        name: A name with the number of the layer.
    """
    number = _NUMBER.search(name)
    template = next(each for each in rule.joined[row] if each.endswith(f".{ending}"))
    return template.format(layer=number[0] if number else "")


def _joined_frames(frames: list[GgufTensor], rule: ArchitectureRule, where: Path) -> SourceTensor:
    """Return the kernel of the first convolution in the form of a checkpoint.

    Args:
        frames: A tensor for each frame that it covers, [outputs, channels, height, width].
        rule: The tower, which says by the shape of its tensor what that form is.
        where: The file, for messages.
    """
    row = next(row for row in rule.tensors if row.name == f"{VISION}patch_embed.weight")
    count = len(PATCHES) if "frames" in row.shape else 1
    if len({(frame.shape, frame.dtype) for frame in frames}) != 1 or len(frames) != count:
        raise SourceError(
            "the first convolution does not have one kernel for each frame",
            where=where,
            expected=f"{' and '.join(PATCHES[:count])} of the same shape and type",
            found=[f"{frame.name} {frame.dtype} {list(frame.shape)}" for frame in frames],
        )
    first = frames[0]
    if len(first.shape) != 4 or first.dtype not in SCALARS:
        raise SourceError(
            "impossible shape or type",
            where=f"{where}, tensor {first.name}",
            expected=f"4 dimensions in {', '.join(SCALARS)}",
            found=f"{list(first.shape)} in {first.dtype}",
        )
    outputs, channels, height, width = first.shape
    shape: tuple[int, ...] = first.shape
    if count > 1:
        shape = (outputs, channels, count, height, width)
    elif "inputs" in row.shape:
        shape = (outputs, height * width * channels)
    name = rule.published_name(row.name)
    read = partial(_kernel, tuple(frames), shape)
    return SourceTensor(name, shape, first.dtype, str(where), read)


def _kernel(frames: tuple[GgufTensor, ...], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the values of the kernels as the matrix of a shape.

    Of two dimensions, a row is a patch whose channels come last; of five, frames follow channels.
    """
    kernels = [map_tensor(frame).reshape(frame.shape) for frame in frames]
    values = kernels[0] if len(shape) < 5 else np.stack(kernels, axis=2)
    if len(shape) == 2:
        values = values.transpose(0, 2, 3, 1)
    return values.reshape(-1, shape[-1])


def _activation(metadata: Mapping[str, Any], family: TowerFamily, where: object) -> str:
    stated = [name for key, name in _ACTIVATIONS.values() if metadata.get(f"clip.{key}") is True]
    if not stated and not family.needs_activation:
        return _ACTIVATIONS["gelu"][1]
    if len(stated) != 1:
        expected = " or ".join(f"clip.{key}" for key, _ in _ACTIVATIONS.values())
        raise ConversionError(
            "the activation of the vision tower is not known",
            where=where,
            expected=f"{expected} is true",
            found="both" if stated else "neither",
        )
    return stated[0]


def _read_sections(metadata: Mapping[str, Any], key: str, where: object) -> dict[str, Any]:
    """Return which pairs of a head are rotated by the time, height and width of an image's token.

    The sections of all text models of Qwen alternate.
    """
    sections = metadata.get(key)
    if not isinstance(sections, list) or len(sections) < 3 or any(sections[3:]):
        raise SourceError(
            "the sections of the rope are missing, without which images have no places",
            where=f"{where}, {key}",
            expected="three sizes and 0",
            found="nothing" if sections is None else sections,
        )
    return {"mrope_section": sections[:3], "mrope_interleaved": True}
