"""The recipe of a checkpoint for videos, from the settings of its video processor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from rdrr_format.errors import SourceError
from rdrr_manifests.models import Processor, Video
from rdrr_manifests.models.processor import RESAMPLING

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.reading.image_processor import at_path, unusable

VIDEO_FILES = ("video_preprocessor_config.json", "processor_config.json")
"""Files with the settings of videos; in the second they stand under `video_processor`."""

_VIDEO_KIND = "Qwen3VLVideoProcessor"
_VIDEO: Mapping[str, Any] = MappingProxyType(
    {
        "placeholder": "<|vision_start|><|video_pad|><|vision_end|>",
        "before": "<{seconds} seconds><|vision_start|>",
        "after": "<|vision_end|>",
        "frames_per_second": 2,
        "min_frames": 4,
        "max_frames": 768,
        "min_pixels": 128 * 32 * 32,
        "max_pixels": 768 * 32 * 32,
    }
)
"""What the only kind of video processor that is known does unless its settings say otherwise."""

_VIDEO_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "frames_per_second": "fps",
        "min_frames": "min_frames",
        "max_frames": "max_frames",
        "min_pixels": "size.shortest_edge",
        "max_pixels": "size.longest_edge",
    }
)
_AS_IMAGES: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {
        "resample": ("resample", RESAMPLING.index("bicubic")),
        "patch_size": ("patch_size", 16),
        "temporal_patch_size": ("temporal_patch_size", 2),
        "merge_size": ("merge_size", 2),
        "rescale_factor": ("rescale_factor", 1 / 255),
        "image_mean": ("mean", (0.5, 0.5, 0.5)),
        "image_std": ("deviation", (0.5, 0.5, 0.5)),
    }
)
"""Settings of videos that must be those of images: the fields of these, and the usual values."""


_USUAL: Mapping[str, Any] = MappingProxyType(
    {
        "cap_pixels_per_frame": False,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "do_sample_frames": True,
        "num_frames": None,
    }
)
"""Settings that must be as they are usually."""


def with_videos(source: Source, processor: Processor) -> Processor:
    """Return a checkpoint's recipe with that of its videos, if it has one of a known kind.

    Raises:
        SourceError: The settings cannot be read, or ask for what this version does not do.
    """
    for name in VIDEO_FILES:
        content = source.content(name)
        settings = {} if content is None else parse_json_object(content, source.path / name)
        nested = settings.get("video_processor")
        settings = nested if isinstance(nested, dict) else settings
        if str(settings.get("video_processor_type")).removesuffix("Fast") == _VIDEO_KIND:
            return _with_videos(processor, settings, source.path / name)
    return processor


def _with_videos(processor: Processor, settings: Mapping[str, Any], where: object) -> Processor:
    for key, (field, usual) in _AS_IMAGES.items():
        expected = getattr(processor, field)
        _check(key, settings, usual, expected, where)
    for key, usual in _USUAL.items():
        _check(key, settings, usual, usual, where)
    read = {field: at_path(settings, path) for field, path in _VIDEO_SETTINGS.items()}
    values = {**_VIDEO, **{field: value for field, value in read.items() if value is not None}}
    try:
        return processor.model_copy(update={"video": Video.model_validate(values)})
    except ValidationError as error:
        raise unusable(error, where) from None


def _check(key: str, settings: Mapping[str, Any], usual: Any, expected: Any, where: object) -> None:
    stated = usual if settings.get(key) is None else settings[key]
    if key == "resample" and type(stated) is int and 0 <= stated < len(RESAMPLING):
        stated = RESAMPLING[stated]
    if (tuple(stated) if isinstance(stated, list) else stated) != expected:
        raise SourceError(
            f"{key} of videos is not that of images, or is not known",
            where=where,
            expected=expected,
            found=stated,
        )
