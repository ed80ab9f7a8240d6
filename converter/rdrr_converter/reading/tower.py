"""The vision tower of a checkpoint: the block `vision`, the recipe of images, and the tensors.

A tower that is incomplete, or not of the form that the architecture describes, is left out, since
the text model runs without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic
from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.models import Architecture, Processor, Vision

from rdrr_converter.architectures import ArchitectureRule, Config, read_block
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.reading.expected_tensors import Shapes, expected_tensors, is_required
from rdrr_converter.reading.finder import Finder
from rdrr_converter.reading.grouped_rows import in_order
from rdrr_converter.reading.image_processor import at_path, read_image_processor
from rdrr_converter.reading.matching import ModelTensor
from rdrr_converter.reading.stacks import as_matrix
from rdrr_converter.reading.unread_keys import unread_keys
from rdrr_converter.reading.video_processor import with_videos

_KEY = "vision_config"


@dataclass(frozen=True)
class VisionTower:
    """The vision tower of a checkpoint.

    Attributes:
        block: The manifest's `vision`; None if there is no tower.
        processor: The manifest's `processor`.
        tensors: Its tensors in storage order.
        used: Their names in the checkpoint.
        notes: Notes for the user.
    """

    block: Vision | None = None
    processor: Processor | None = None
    tensors: tuple[ModelTensor, ...] = ()
    used: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


NO_TOWER = VisionTower()


def match_tower(source: Source, rule: ArchitectureRule | None, text: Architecture) -> VisionTower:
    """Return the vision tower of a checkpoint, if it has one that can be used.

    Args:
        source: The checkpoint.
        rule: The description of the tower; None if the architecture has none.
        text: Sizes of the text model.
    """
    values = source.config.get(_KEY)
    if rule is None or not isinstance(values, Mapping):
        return NO_TOWER
    if not any(name.startswith(rule.prefixes) for name in source.tensors):
        return NO_TOWER
    config = rule.config(tower_values(source.config, rule), f"{source.config_path}, {_KEY}")
    try:
        block = _block(rule, config, text, len(source.tensors))
        tensors, used = _tensors(source, rule, config, block)
        processor = read_image_processor(source)
    except (SourceError, ConversionError, pydantic.ValidationError) as error:
        return _unusable(str(error))
    unread = unread_keys(config, rule)
    if unread:
        return _unusable(f"its configuration has unknown keys: {', '.join(unread)}")
    if processor is None:
        notes = ("no known settings of an image processor: images cannot be read",)
        return VisionTower(block, None, tensors, used, notes)
    try:
        return VisionTower(block, with_videos(source, processor), tensors, used)
    except SourceError as error:
        notes = (f"the settings of videos cannot be used, so only images are read: {error}",)
        return VisionTower(block, processor, tensors, used, notes)


def tower_values(config: Mapping[str, Any], rule: ArchitectureRule) -> dict[str, Any]:
    """Return the configuration of a tower, with the keys that stand beside it by their paths.

    Args:
        config: The configuration of the whole model.
        rule: The description of the tower.
    """
    beside = {path: at_path(config, path) for path in rule.beside}
    stated = {path: value for path, value in beside.items() if value is not None}
    return {**stated, **config[_KEY]}


def _unusable(why: str) -> VisionTower:
    why = " ".join(why.split())  # a validation error has several lines
    return VisionTower(notes=(f"the vision tower cannot be used, so it is not converted: {why}",))


def _block(rule: ArchitectureRule, config: Config, text: Architecture, tensors: int) -> Vision:
    # A tower whose configuration does not say how wide its output is has that of the text model.
    sizes = {"output_size": text.hidden_size, **read_block(rule.sizes, config)}
    block = Vision.model_validate(sizes)
    if block.num_layers > tensors:
        raise config.fault("the number of layers", f"at most {tensors}", block.num_layers)
    if block.output_size != text.hidden_size:
        raise config.fault("the output size", str(text.hidden_size), block.output_size)
    return block


def _tensors(
    source: Source, rule: ArchitectureRule, config: Config, block: Vision
) -> tuple[tuple[ModelTensor, ...], frozenset[str]]:
    """Return the tensors, and their names in the checkpoint.

    Raises:
        SourceError: One is missing, or has the wrong shape.
    """
    finder = Finder(source, rule, tower_shapes(config, block))
    tensors = []
    for expected in expected_tensors(rule, config, block.num_layers, None):
        name = expected.fill(expected.rule.name)
        tensor = finder.find(expected) or finder.join(expected)
        if tensor is None and not is_required(expected.rule, config):
            continue
        if tensor is None:
            raise SourceError("a tensor is missing", where=source.path, expected=name)
        role, order = expected.rule.role, rule.row_order.get(expected.rule.name)
        matrix = as_matrix(tensor, block.position_rows if role == "other" else None)
        if order is not None:
            matrix = in_order(matrix, np.array(order(config)))
        tensors.append(ModelTensor(name, matrix, role, None))
    return tuple(tensors), frozenset(finder.used)


def tower_shapes(config: Config, block: Vision) -> Shapes:
    """Return the sizes of the dimensions that the rules of a tower's tensors name."""
    dimensions = {
        "channels": config.integer("in_channels"),
        "frames": config.integer("temporal_patch_size"),
        "patch": config.integer("patch_size"),
        "hidden": block.hidden_size,
        "inner": block.intermediate_size,
        "merged": block.merged_size,
        "output": block.output_size,
        "positions": block.position_grid**2,
        "inputs": block.patch_inputs,
        "head": block.head_dim,
        "axes": 2,
        "places": block.position_grid,
        "limits": 4,
        "one": 1,
    }
    return Shapes(dimensions, None)
