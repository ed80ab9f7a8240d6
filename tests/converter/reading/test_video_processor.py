"""Settings of video processors become the recipe that transformers follows with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.reading.video_processor import with_videos
from rdrr_format.errors import SourceError
from rdrr_manifests.models import Processor
from support.images import QWEN

HALF = {"mean": (0.5, 0.5, 0.5), "deviation": (0.5, 0.5, 0.5)}
IMAGES = QWEN.model_copy(update=HALF)
KIND = {"video_processor_type": "Qwen3VLVideoProcessor"}


def read(settings: dict[str, Any], name: str = "video_preprocessor_config.json") -> Processor:
    files = {name: json.dumps(settings).encode()}
    return with_videos(Source(Path("model"), "safetensors", {}, {}, {}, files), IMAGES)


def test_the_usual_settings_are_those_of_transformers() -> None:
    video = read(KIND).video
    assert (video.frames_per_second, video.min_frames, video.max_frames) == (2, 4, 768)
    assert (video.min_pixels, video.max_pixels) == (128 * 32 * 32, 768 * 32 * 32)
    assert video.placeholder == "<|vision_start|><|video_pad|><|vision_end|>"
    assert read({**KIND, "resample": 3, "image_mean": [0.5] * 3}).video == video
    nested = {"image_processor": {}, "video_processor": KIND}
    assert read(nested, "processor_config.json").video == video


def test_stated_settings_are_taken() -> None:
    size = {"shortest_edge": 4096, "longest_edge": 25165824}
    video = read({**KIND, "size": size, "fps": 1.5, "min_frames": 2, "max_frames": 64}).video
    assert (video.min_pixels, video.max_pixels) == (4096, 25165824)
    assert (video.frames_per_second, video.min_frames, video.max_frames) == (1.5, 2, 64)


@pytest.mark.parametrize("kind", [{}, {"video_processor_type": "Qwen2VLVideoProcessor"}])
def test_videos_of_another_kind_are_left_out(kind: dict[str, Any]) -> None:
    assert read(kind) == IMAGES
    assert read(kind).video is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"patch_size": 14}, "patch_size"),
        ({"temporal_patch_size": 1}, "temporal_patch_size"),
        ({"merge_size": 4}, "merge_size"),
        ({"image_mean": [0.4] * 3}, "image_mean"),
        ({"image_std": 0.5}, "image_std"),
        ({"resample": 2}, "resample"),
        ({"resample": 77}, "resample"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
        ({"do_sample_frames": False}, "do_sample_frames"),
        ({"cap_pixels_per_frame": True}, "cap_pixels_per_frame"),
        ({"fps": 0}, "frames"),
        ({"size": {"longest_edge": "large"}}, "max_pixels"),
    ],
)
def test_settings_that_are_not_followed_are_refused(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(SourceError, match=name):
        read({**KIND, **settings})
