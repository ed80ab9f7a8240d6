"""Vision towers in files of their own, which llama.cpp calls mmproj: read, and written.

The architecture of such a file is `clip`, and its projector says what the tower is; this version
knows that of Qwen 3 VL and later. The kernel of the first convolution covers two frames and is
stored as a tensor for each, taps (DeepStack) have the number of their layer, and the sections of
the text model's rope and the number of taps are in the file of the text model.
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

from rdrr_converter.checkpoint.source import SCALARS, Source, SourceTensor
from rdrr_converter.gguf.architectures import MMPROJ
from rdrr_converter.gguf.file import GgufFile, GgufTensor, read_gguf
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import Entries
from rdrr_converter.gguf.stored import decoded, map_tensor, read_tensor

PROJECTOR = "qwen3vl_merger"
TEXT_ARCHITECTURES = ("qwen3vl", "qwen35", "qwen35moe")
"""Architectures of the text models whose towers have this projector."""

POSITION_TABLE = "v.position_embd.weight"
PATCHES = ("v.patch_embd.weight", "v.patch_embd.weight.1")
"""The kernels of both frames."""

_CHANNELS, _NORM_EPS = 3, 1e-6
_PREFIX = "model.visual."
_PROCESSOR = "preprocessor_config.json"
_MIN_PIXELS, _MAX_PIXELS = 1 << 16, 1 << 24
"""What Qwen publishes with its towers; llama.cpp has bounds for all models, and writes none."""

_ACTIVATIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"gelu": ("use_gelu", "gelu_pytorch_tanh"), "silu": ("use_silu", "silu")}
)
"""Keys of the metadata and values of the configuration, by the activation in the manifest."""

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "v.patch_embd": "patch_embed",
        "v.position_embd": "embed_positions",
        "v.blk.{n}.ln1": "layers.{n}.input_layernorm",
        "v.blk.{n}.attn_qkv": "blocks.{n}.attn.qkv",
        "v.blk.{n}.attn_out": "layers.{n}.self_attn.o_proj",
        "v.blk.{n}.ln2": "layers.{n}.post_attention_layernorm",
        "v.blk.{n}.ffn_up": "layers.{n}.mlp.up_proj",
        "v.blk.{n}.ffn_down": "layers.{n}.mlp.down_proj",
        "v.deepstack.{n}.norm": "taps.{n}.norm",
        "v.deepstack.{n}.fc1": "taps.{n}.up_proj",
        "v.deepstack.{n}.fc2": "taps.{n}.down_proj",
        "v.post_ln": "merger.norm",
        "mm.0": "merger.up_proj",
        "mm.2": "merger.down_proj",
    }
)
"""The modules by llama.cpp's names, without the prefix that both kinds of names of ours have."""

_HARMLESS = ("image_size", "projector_type", "n_wa_pattern")
"""Keys that say nothing more; of the second, no tower of this projector has windows."""


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
    if text not in TEXT_ARCHITECTURES:
        raise ConversionError(
            "this version knows no vision tower in a file of its own for the architecture",
            where=source.path,
            expected=", ".join(TEXT_ARCHITECTURES),
            found=text,
        )
    file = read_gguf(path)
    tower, recipe = read_tower(file.metadata, file.tensors, path)
    layers = tower["deepstack_visual_indexes"]
    stated = metadata.get(f"{text}.n_deepstack_layers", len(layers))
    if stated != len(layers):
        raise SourceError(
            "the tower and the model do not belong together",
            where=f"{path}, clip.vision.is_deepstack_layers",
            expected=f"{stated} layers, as in {source.path.name}",
            found=len(layers),
        )
    scaling = {"rope_type": "default", **(source.config.get("rope_scaling") or {})}
    scaling |= _read_sections(metadata, f"{text}.rope.dimension_sections", source.path)
    tensors = {tensor.name: tensor for tensor in _tensors(file, layers)}
    return replace(
        source,
        config={**source.config, "rope_scaling": scaling, "vision_config": tower},
        tensors={**source.tensors, **tensors},
        generated={**source.generated, _PROCESSOR: json.dumps(recipe).encode()},
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
    return replace(read, notes=(*source.notes, note))


def read_tower(
    metadata: Mapping[str, Any], tensors: Mapping[str, Any], where: object
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration of a tower and the settings of its image processor.

    Args:
        metadata: Metadata of the file.
        tensors: Its tensors, whose shapes state what the metadata does not.
        where: The file, for messages.

    Raises:
        SourceError: A size is missing or impossible.
        ConversionError: The tower is of a kind that this version does not know.
    """
    kind = metadata.get("general.architecture")
    projector = metadata.get("clip.projector_type", metadata.get("clip.vision.projector_type"))
    if kind != MMPROJ or projector != PROJECTOR:
        raise ConversionError(
            "not a vision tower that this version knows",
            where=where,
            expected=f"{MMPROJ} with clip.projector_type {PROJECTOR}",
            found=kind if kind != MMPROJ else projector,
        )
    read = GgufMetadata(metadata, "clip.vision", where)
    positions = tensors.get(POSITION_TABLE)
    if positions is None or not positions.shape:
        raise SourceError("a tensor is missing", where=where, expected=POSITION_TABLE)
    if not read.accept("attention.layer_norm_epsilon", _NORM_EPS):
        raise ConversionError(
            "a tower with another epsilon of its norms is not known",
            where=f"{where}, clip.vision.attention.layer_norm_epsilon",
            expected=_NORM_EPS,
            found=read.get("attention.layer_norm_epsilon"),
        )
    sizes = {
        "depth": read.size("block_count"),
        "hidden_size": read.size("embedding_length"),
        "intermediate_size": read.size("feed_forward_length"),
        "num_heads": read.size("attention.head_count"),
        "out_hidden_size": read.size("projection_dim"),
        "patch_size": read.size("patch_size"),
        "spatial_merge_size": read.size("spatial_merge_size"),
    }
    tower = {
        **sizes,
        "temporal_patch_size": len(PATCHES),
        "in_channels": _CHANNELS,
        "num_position_embeddings": positions.shape[0],
        "deepstack_visual_indexes": _tapped(read.get("is_deepstack_layers"), sizes["depth"], where),
        "hidden_act": _activation(metadata, where),
    }
    recipe = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": sizes["patch_size"],
        "temporal_patch_size": len(PATCHES),
        "merge_size": sizes["spatial_merge_size"],
        "image_mean": read.get("image_mean"),
        "image_std": read.get("image_std"),
        "min_pixels": read.get("image_min_pixels") or _MIN_PIXELS,
        "max_pixels": read.get("image_max_pixels") or _MAX_PIXELS,
    }
    unread = [key for key, _ in read.unread() if key not in _HARMLESS]
    if unread:
        raise ConversionError(
            "the metadata of the vision tower has unknown keys",
            where=where,
            found=", ".join(f"clip.vision.{key}" for key in unread),
        )
    return tower, recipe


def write_tower(vision: Vision, processor: Processor) -> Entries:
    """Return the metadata of a tower's file; what it cannot express is found on reading it back."""
    key, _ = _ACTIVATIONS.get(vision.activation, ("", ""))
    flags = [layer in vision.taps for layer in range(vision.num_layers)]
    of_vision = {
        "attention.head_count": vision.num_attention_heads,
        "attention.layer_norm_epsilon": vision.norm_eps,
        "block_count": vision.num_layers,
        "embedding_length": vision.hidden_size,
        "feed_forward_length": vision.intermediate_size,
        "image_max_pixels": processor.max_pixels or _MAX_PIXELS,
        "image_mean": list(processor.mean),
        "image_min_pixels": processor.min_pixels or _MIN_PIXELS,
        "image_size": vision.position_grid * processor.patch_size,
        "image_std": list(processor.deviation),
        "is_deepstack_layers": flags,
        "patch_size": processor.patch_size,
        "projection_dim": vision.output_size,
        "spatial_merge_size": vision.merge_size,
    }
    return {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": PROJECTOR,
        **({f"clip.{key}": True} if key else {}),
        **{f"clip.vision.{name}": value for name, value in of_vision.items()},
    }


def write_text(vision: Vision | None, rope: Rope, architecture: str) -> Entries:
    """Return what the file of a text model states about its tower."""
    if vision is None or architecture not in TEXT_ARCHITECTURES:
        return {}
    entries: Entries = {f"{architecture}.n_deepstack_layers": len(vision.taps)}
    if rope.mrope_section is not None and rope.mrope_interleaved:
        entries[f"{architecture}.rope.dimension_sections"] = [*rope.mrope_section, 0]
    return entries


def llama_name(name: str, taps: tuple[int, ...]) -> str | None:
    """Return llama.cpp's name of a tensor of the tower; None if it has none."""
    stem, _, ending = name.removeprefix(VISION).rpartition(".")
    form, number = _form(stem)
    theirs = next((theirs for theirs, ours in _NAMES.items() if ours == form), None)
    if theirs is None:
        return None
    if form.startswith("taps."):
        number = taps[number]
    return f"{theirs.replace('{n}', str(number))}.{ending}"


def _our_name(name: str, taps: tuple[int, ...], where: object) -> str:
    """Return the name of a tensor of the tower in a checkpoint."""
    stem, _, ending = name.rpartition(".")
    form, number = _form(stem)
    ours = _NAMES.get(form)
    is_tap = ours is not None and ours.startswith("taps.")
    if ours is None or (is_tap and number not in taps):
        raise SourceError("a tensor of the vision tower is unknown", where=where, found=name)
    return f"{_PREFIX}{ours.replace('{n}', str(taps.index(number) if is_tap else number))}.{ending}"


def _form(stem: str) -> tuple[str, int]:
    """Return a name with `{n}` in place of the number of its layer, and the number."""
    number = re.search(r"(?<=\.)\d+(?=\.)", stem)
    if number is None:
        return stem, 0
    return stem[: number.start()] + "{n}" + stem[number.end() :], int(number[0])


def _tensors(file: GgufFile, taps: list[int]) -> Iterator[SourceTensor]:
    """Yield the tensors of a tower with the names and the form of a checkpoint."""
    frames = [file.tensors.get(name) for name in PATCHES]
    for tensor in file.tensors.values():
        if tensor.name not in PATCHES:
            name = _our_name(tensor.name, tuple(taps), file.path)
            yield decoded(read_tensor(tensor, name))
    yield _joined_frames([frame for frame in frames if frame is not None], file.path)


def _joined_frames(frames: list[GgufTensor], where: Path) -> SourceTensor:
    """Return the kernel of the first convolution, given a tensor for each frame."""
    if len({(frame.shape, frame.dtype) for frame in frames}) != 1 or len(frames) != len(PATCHES):
        raise SourceError(
            "the kernels of the first convolution are not those of two frames",
            where=where,
            expected=f"{' and '.join(PATCHES)} of the same shape and type",
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
    outputs, channels, *size = first.shape
    return SourceTensor(
        f"{_PREFIX}patch_embed.weight",
        (outputs, channels, len(PATCHES), *size),
        first.dtype,
        where.name,
        partial(_interleave_frames, tuple(frames)),
    )


def _interleave_frames(frames: tuple[GgufTensor, ...]) -> npt.NDArray[Any]:
    outputs, channels, height, width = frames[0].shape
    kernels = [map_tensor(frame).reshape(outputs, channels, height, width) for frame in frames]
    return np.stack(kernels, axis=2).reshape(-1, width)


def _tapped(flags: object, layers: int, where: object) -> list[int]:
    """Return the layers that are tapped."""
    stated = [] if flags is None else flags
    if not isinstance(stated, list) or any(type(flag) is not bool for flag in stated):
        raise SourceError(
            "impossible flags of layers",
            where=f"{where}, clip.vision.is_deepstack_layers",
            expected=f"{layers} booleans",
            found=stated,
        )
    return [layer for layer, flag in enumerate(stated) if flag]


def _activation(metadata: Mapping[str, Any], where: object) -> str:
    stated = [name for key, name in _ACTIVATIONS.values() if metadata.get(f"clip.{key}") is True]
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

    The sections of all text models in `TEXT_ARCHITECTURES` alternate.
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
