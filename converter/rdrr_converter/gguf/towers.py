"""What describes a kind of vision tower in llama.cpp's mmproj files: names, keys and forms.

`gguf.tower_families` has a row for each kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import SourceError
from rdrr_manifests.graph.vision import VISION
from rdrr_manifests.models import Processor, Vision

from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import Entries

PATCHES = ("v.patch_embd.weight", "v.patch_embd.weight.1")
"""The kernels of the first convolution, one for each frame that a patch covers."""

POSITION_TABLE = "v.position_embd.weight"
LIMITS = ("input_min", "input_max", "output_min", "output_max")
"""What follows the name of a product that has limits, which are tensors of one value."""

SIZES: Mapping[str, str] = MappingProxyType(
    {
        "attention.head_count": "num_attention_heads",
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "patch_size": "patch_size",
    }
)
"""Keys of a configuration for the sizes that all towers have, by their keys in the metadata."""


@dataclass(frozen=True)
class StatedTower:
    """What the metadata and the shapes in a file state about a tower.

    Attributes:
        vision: Its configuration, `vision_config`.
        recipe: The settings of its image processor.
        beside: Keys of the model's configuration, beside that of the tower.
        text: Keys of the text model's configuration.
    """

    vision: dict[str, Any]
    recipe: dict[str, Any]
    beside: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)

    def around(self, text: Mapping[str, Any], family: TowerFamily) -> dict[str, Any]:
        """Return the configuration of the whole model.

        Args:
            text: That of the text model, which it nests if the kind of tower has a class of its
                own.
            family: The kind of tower.
        """
        if not family.wrapper:
            return {**text, "vision_config": self.vision}
        return {
            "architectures": [family.wrapper],
            "text_config": dict(text),
            "vision_config": self.vision,
            **self.beside,
        }


@dataclass(frozen=True)
class TowerMetadata:
    """What a file of a tower states, for the families to read.

    Attributes:
        read: Metadata of the tower.
        tensors: Tensors by their names; only their shapes matter.
        sizes: The sizes that all towers have, by their keys in a configuration.
        text: The configuration of the text model.
    """

    read: GgufMetadata
    tensors: Mapping[str, Any]
    sizes: Mapping[str, int]
    text: Mapping[str, Any]

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            SourceError: It is missing, or has another number of dimensions.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise SourceError("a tensor is missing", where=self.read.where, expected=name)
        shape = tuple(tensor.shape)
        if len(shape) != dimensions:
            raise SourceError(
                "impossible shape",
                where=f"{self.read.where}, tensor {name}",
                expected=f"{dimensions} dimensions",
                found=list(shape),
            )
        return shape


@dataclass(frozen=True)
class TowerFamily:
    """A kind of tower in llama.cpp.

    Attributes:
        projector: llama.cpp's name of what makes tokens of its patches.
        texts: Architectures of the text models that have it.
        names: Modules by llama.cpp's names, without the prefix of ours; `{n}` is the number of a
            layer. The name of a tensor without an ending may be in place of that of a module.
        read: Reads what is particular to it.
        write: Returns the metadata that is particular to it, without `clip.vision.`.
        wrapper: Class of the whole model, where the text model's GGUF states no such class.
        sizes: Keys of a configuration for the sizes, by their keys in the metadata.
        activation: Key of a configuration for the activation.
        stated_in: Key of the metadata for the projector.
        offsets: What is added to the values of a tensor in the file, by its name there.
        needs_activation: Whether every file states the activation.
        note: How results in llama.cpp differ.
    """

    projector: str
    texts: tuple[str, ...]
    names: Mapping[str, str]
    read: Callable[[TowerMetadata], StatedTower]
    write: Callable[[Vision, Processor], Entries]
    wrapper: str = ""
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZES)
    activation: str = "hidden_act"
    stated_in: str = "clip.projector_type"
    offsets: Mapping[str, float] = field(default_factory=dict)
    needs_activation: bool = True
    note: str = "llama.cpp resizes images with a filter and within bounds of its own"

    def our_name(self, name: str, taps: tuple[int, ...], where: object) -> str:
        """Return the canonical name of a tensor of a file.

        Args:
            name: llama.cpp's name.
            taps: The layers that are tapped, since a tap has the number of its layer there.
            where: The file, for messages.

        Raises:
            SourceError: This kind of tower has no such tensor.
        """
        whole = self.names.get(name)
        if whole is not None:
            return f"{VISION}{whole}"
        stem, _, ending = name.rpartition(".")
        form, number = _form(stem)
        ours = self.names.get(form)
        is_tap = ours is not None and ours.startswith("taps.")
        if ours is None or (is_tap and number not in taps):
            raise SourceError("a tensor of the vision tower is unknown", where=where, found=name)
        number = taps.index(number) if is_tap else number
        return f"{VISION}{ours.replace('{n}', str(number))}.{ending}"

    def llama_name(self, name: str, taps: tuple[int, ...]) -> str | None:
        """Return llama.cpp's name of a tensor, given the canonical one; None if it has none."""
        plain = name.removeprefix(VISION)
        theirs = {ours: theirs for theirs, ours in self.names.items()}
        if plain in theirs:
            return theirs[plain]
        stem, _, ending = plain.rpartition(".")
        form, number = _form(stem)
        if form not in theirs:
            return None
        number = taps[number] if form.startswith("taps.") else number
        return f"{theirs[form].replace('{n}', str(number))}.{ending}"


def _form(stem: str) -> tuple[str, int]:
    """Return a name with `{n}` in place of the number of its layer, and the number."""
    number = re.search(r"(?<=\.)\d+(?=\.)", stem)
    if number is None:
        return stem, 0
    return stem[: number.start()] + "{n}" + stem[number.end() :], int(number[0])
