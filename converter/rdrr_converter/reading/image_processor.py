"""The recipe of a checkpoint for images, from the settings of its image processor.

Each kind of processor is a row of a table: what it does unless the settings say otherwise, and
where they say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from types import MappingProxyType
from typing import Any

import numpy as np
from pydantic import ValidationError
from rdrr_format.errors import SourceError
from rdrr_manifests.models import Processor
from rdrr_manifests.models.processor import RESAMPLING

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import Source

FILES = ("preprocessor_config.json", "processor_config.json")
"""Files with the settings; in the second they stand under `image_processor`."""

_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ImageRecipe:
    """What a kind of image processor does.

    Attributes:
        fields: Fields of `Processor`, for what no setting changes or what a setting may omit.
        settings: Where else a field is read, as paths in the settings, the first that exists;
            paths that begin with `config.` are read in the model's configuration.
        tokens: Path of the number of tokens of an image of a fixed size, which states how many
            patches are merged.
        unknown: Settings that must be absent or false, because this version does not follow them.
        required: Settings that must not be false, because this version always follows them.
        doubled: Whether the model itself makes 2 x - 1 of each value x that its processor gives.
    """

    fields: Mapping[str, Any]
    settings: Mapping[str, tuple[str, ...]]
    tokens: str | None = None
    unknown: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    doubled: bool = False


_QWEN2_VL = ImageRecipe(
    fields={
        "sizing": "pixel_bounds",
        "resample": "bicubic",
        "min_pixels": 56 * 56,
        "max_pixels": 28 * 28 * 1280,
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "deviation": (0.26862954, 0.26130258, 0.27577711),
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "patch_order": "merged",
        "placeholder": "<|image_pad|>",
        "token": "<|image_pad|>",
    },
    settings={
        "min_pixels": ("min_pixels", "size.shortest_edge"),
        "max_pixels": ("max_pixels", "size.longest_edge"),
        "patch_size": ("patch_size",),
        "temporal_patch_size": ("temporal_patch_size",),
        "merge_size": ("merge_size",),
    },
)

_GEMMA3 = ImageRecipe(
    fields={
        "sizing": "fixed",
        "resample": "bilinear",
        "height": 224,
        "width": 224,
        "mean": _HALF,
        "deviation": _HALF,
        "patch_size": 14,
        "patch_order": "merged",
        "placeholder": "<start_of_image>",
        "token": "<image_soft_token>",
        "before": "\n\n<start_of_image>",
        "after": "<end_of_image>\n\n",
    },
    settings={
        "height": ("size.height",),
        "width": ("size.width",),
        "patch_size": ("config.vision_config.patch_size",),
    },
    tokens="config.mm_tokens_per_image",
    unknown=("do_pan_and_scan",),
)

_GEMMA4 = ImageRecipe(
    fields={
        "sizing": "token_budget",
        "resample": "bicubic",
        "max_tokens": 280,
        "mean": (0.0, 0.0, 0.0),
        "deviation": (1.0, 1.0, 1.0),
        "patch_size": 16,
        "merge_size": 3,
        "patch_order": "merged",
        "channel_order": "last",
        "placeholder": "<|image|>",
        "token": "<|image|>",
        "before": "<|image>",
        "after": "<image|>",
    },
    settings={
        "max_tokens": ("max_soft_tokens",),
        "patch_size": ("patch_size",),
        "merge_size": ("pooling_kernel_size",),
    },
    doubled=True,
)

_IDEFICS3 = ImageRecipe(
    fields={
        "sizing": "tiles",
        "resample": "lanczos",
        "height": 364,
        "width": 364,
        "tiles": {
            "longest_side": 4 * 364,
            "before": "<fake_token_around_image><row_{row}_col_{column}>",
            "row_after": "\n",
            "after": "\n",
        },
        "mean": _HALF,
        "deviation": _HALF,
        "patch_size": 14,
        "merge_size": 2,
        "patch_order": "merged",  # that of its pixel shuffle, within the squares of tokens
        "placeholder": "<image>",
        "token": "<image>",
        "before": "<fake_token_around_image><global-img>",
        "after": "<fake_token_around_image>",
    },
    settings={
        "height": ("max_image_size.longest_edge",),
        "width": ("max_image_size.longest_edge",),
        "tiles.longest_side": ("size.longest_edge",),
        "patch_size": ("config.vision_config.patch_size",),
        "merge_size": ("config.scale_factor",),
    },
    required=("do_image_splitting",),
)

RECIPES: Mapping[str, ImageRecipe] = MappingProxyType(
    {
        "Qwen2VLImageProcessor": _QWEN2_VL,
        "Gemma3ImageProcessor": _GEMMA3,
        "Gemma4ImageProcessor": _GEMMA4,
        "Idefics3ImageProcessor": _IDEFICS3,
        "SmolVLMImageProcessor": _IDEFICS3,
    }
)
"""The recipes by the name of the processor's class, without what names its implementation."""

_COMMON: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "resample": ("resample",),
        "rescale_factor": ("rescale_factor",),
        "mean": ("image_mean",),
        "deviation": ("image_std",),
    }
)
"""Settings that all processors have."""

_OFF: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "do_rescale": {"rescale_factor": 1.0},
        "do_normalize": {"mean": (0.0, 0.0, 0.0), "deviation": (1.0, 1.0, 1.0)},
    }
)
"""What fields become where a step is switched off."""


def read_image_processor(source: Source) -> Processor | None:
    """Return a checkpoint's recipe for images; None if it has none, or one of an unknown kind.

    Raises:
        SourceError: The settings cannot be read, or ask for what this version does not do.
    """
    for name in FILES:
        content = source.content(name)
        if content is None:
            continue
        where = source.path / name
        processor = processor_of(parse_json_object(content, where), source.config, where)
        if processor is not None:
            return processor
    return None


def processor_of(
    settings: Mapping[str, Any], config: Mapping[str, Any], where: object
) -> Processor | None:
    """Return the recipe that the content of one of `FILES` states; None if its kind is unknown.

    Args:
        settings: Content of the file.
        config: Configuration of the model.
        where: The file, for messages.

    Raises:
        SourceError: The settings ask for what this version does not do.
    """
    nested = settings.get("image_processor")
    settings = nested if isinstance(nested, dict) else settings
    kind = str(settings.get("image_processor_type"))
    recipe = RECIPES.get(kind.removesuffix("Fast").removesuffix("Pil"))
    return None if recipe is None else _processor(recipe, {**settings, "config": config}, where)


def _processor(recipe: ImageRecipe, settings: Mapping[str, Any], where: object) -> Processor:
    values: dict[str, Any] = {"rescale_factor": 1 / 255, **recipe.fields}
    for name, paths in {**_COMMON, **recipe.settings}.items():
        stated = next(
            (value for path in paths if (value := at_path(settings, path)) is not None), None
        )
        if stated is not None and not _is_rounded(stated, values.get(name)):
            block, _, field = name.rpartition(".")
            values |= {block: {**values[block], field: stated}} if block else {name: stated}
    if type(values["resample"]) is int and 0 <= values["resample"] < len(RESAMPLING):
        values["resample"] = RESAMPLING[values["resample"]]
    for switch, fields in _OFF.items():
        if settings.get(switch) is False:
            values |= fields
    _check_switches(recipe, settings, where)
    if recipe.tokens is not None:
        values["merge_size"] = _merge_size(values, at_path(settings, recipe.tokens), where)
    try:
        processor = Processor.model_validate(values)
        return _doubled(processor) if recipe.doubled else processor
    except ValidationError as error:
        raise unusable(error, where) from None


def unusable(error: ValidationError, where: object) -> SourceError:
    """Return what a validation of settings found first as an error of their file."""
    first = error.errors(include_url=False)[0]
    return SourceError(
        f"a setting of the image processor cannot be used: {'.'.join(map(str, first['loc']))}",
        where=where,
        expected=first["msg"].removeprefix("Input should be "),
        found=first["input"],
    )


def _is_rounded(stated: Any, usual: Any) -> bool:
    """Return whether numbers are the usual ones rounded to float32, as a GGUF states them."""
    if not isinstance(stated, list) or not isinstance(usual, tuple) or len(stated) != len(usual):
        return False
    numbers = all(type(number) is float for number in stated)
    return numbers and bool(
        np.array_equal(np.asarray(stated, np.float32), np.asarray(usual, np.float32))
    )


def _doubled(processor: Processor) -> Processor:
    """Return the recipe of values 2 x - 1, where `processor` is that of x."""
    pairs = zip(processor.mean, processor.deviation, strict=True)
    mean = tuple(middle + deviation / 2 for middle, deviation in pairs)
    halves = tuple(deviation / 2 for deviation in processor.deviation)
    return processor.model_copy(update={"mean": mean, "deviation": halves})


def _check_switches(recipe: ImageRecipe, settings: Mapping[str, Any], where: object) -> None:
    for switch in recipe.unknown:
        if settings.get(switch):
            raise SourceError(
                f"the image processor asks for {switch}, which this version does not do",
                where=where,
                expected="false or nothing",
                found=settings[switch],
            )
    for switch in ("do_resize", *recipe.required):
        if settings.get(switch) is False:
            message = f"the image processor switches {switch} off, which this version always does"
            raise SourceError(message, where=where, expected="true or nothing", found=False)


def _merge_size(values: Mapping[str, Any], tokens: Any, where: object) -> int:
    """Return how many patches are merged in each direction for a number of tokens."""
    patch, width, height = (values[name] for name in ("patch_size", "width", "height"))
    if all(type(number) is int and number > 0 for number in (patch, width, height, tokens)):
        patches = (height // patch) * (width // patch)
        size = isqrt(patches // tokens)
        if size and patches == tokens * size**2:
            return size
    raise SourceError(
        "the patches of an image cannot be merged into its tokens",
        where=where,
        expected="a square of patches for each token",
        found=f"{height} x {width} in patches of {patch} for {tokens} tokens",
    )


def at_path(settings: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of keys; None if there is none."""
    value: Any = settings
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
