"""Settings of image processors become the recipe that transformers follows with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.reading.image_processor import read_image_processor
from rdrr_format.errors import SourceError
from rdrr_manifests.models import Processor
from rdrr_runtime.images.patches import image_patches
from rdrr_runtime.images.sizes import resized
from support.images import drawn_image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

VISION = {"vision_config": {"patch_size": 14, "image_size": 896}, "mm_tokens_per_image": 256}
"""What Gemma 3 states in its configuration: 64 x 64 patches, merged by squares of 4 x 4."""


def read(settings: dict[str, Any], config: dict[str, Any] | None = None) -> Processor | None:
    files = {"preprocessor_config.json": json.dumps(settings).encode()}
    return read_image_processor(Source(Path("model"), "safetensors", config or {}, {}, {}, files))


def patches(settings: dict[str, Any], config: dict[str, Any] | None = None) -> np.ndarray:
    processor = read(settings, config)
    assert processor is not None
    return image_patches(processor, drawn_image(133, 58)).patches


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
        {"min_pixels": 3136, "max_pixels": 4 * 28 * 28, "image_mean": [0.5] * 3, "resample": 2},
        {"do_normalize": False, "temporal_patch_size": 1},
        {"do_normalize": False, "do_rescale": False},
    ],
)
def test_settings_of_qwen_give_its_patches(options: dict[str, Any]) -> None:
    judge = Qwen2VLImageProcessorPil(**options)
    expected = judge(images=[drawn_image(133, 58)], return_tensors="np")["pixel_values"]
    for settings in (judge.to_dict(), {"image_processor_type": "Qwen2VLImageProcessorFast"}):
        np.testing.assert_allclose(patches({**settings, **options}), expected, atol=1e-5, rtol=0)


def test_settings_of_gemma_4_give_its_patches_as_its_model_scales_them() -> None:
    judge = Gemma4ImageProcessorPil(max_soft_tokens=140)
    expected = judge(images=[drawn_image(133, 58)], return_tensors="np")["pixel_values"][0]
    result, processor = patches(judge.to_dict()), read(judge.to_dict())
    assert processor is not None
    height, width = (size // 48 for size in resized(processor, (133, 58)))
    raster = expected[: len(result)].reshape(height, 3, width, 3, -1).swapaxes(1, 2)
    judged = 2 * (raster.reshape(result.shape) - 0.5)
    np.testing.assert_allclose(result, judged, atol=1e-5, rtol=0)


def test_settings_of_gemma_3_and_its_configuration_give_its_pixels_and_tokens() -> None:
    judge = Gemma3ImageProcessorPil(size={"height": 896, "width": 896})
    settings = judge.to_dict()
    processor = read(settings, VISION)
    assert (processor.merge_size, processor.side) == (4, 56)
    expected = judge(images=[drawn_image(133, 58)], return_tensors="np")["pixel_values"][0]
    second = patches(settings, VISION)[1].reshape(3, 14, 14)
    np.testing.assert_allclose(second, expected[:, :14, 14:28], atol=1e-5, rtol=0)


def test_settings_of_idefics_3_and_its_configuration_give_its_tiles() -> None:
    judge = Idefics3ImageProcessorPil(
        size={"longest_edge": 150}, max_image_size={"longest_edge": 64}, image_mean=[0.4] * 3
    )
    config = {"vision_config": {"patch_size": 16}, "scale_factor": 2}
    processor = read(judge.to_dict(), config)
    assert processor.side == 32
    expected = judge(images=[drawn_image(133, 58)], return_tensors="np")["pixel_values"][0]
    result = patches(judge.to_dict(), config)
    assert len(result) == 16 * len(expected)
    last = result[-1].reshape(3, 16, 16)
    np.testing.assert_allclose(last, expected[-1, :, 48:, 48:], atol=1e-5, rtol=0)


def test_settings_nested_in_those_of_the_processor_are_read() -> None:
    nested = {"image_processor": {"image_processor_type": "Qwen2VLImageProcessor"}}
    files = {"processor_config.json": json.dumps(nested).encode()}
    source = Source(Path("model"), "safetensors", {}, {}, {}, files)
    assert read_image_processor(source) == read(nested["image_processor"])


def test_a_checkpoint_without_a_known_processor_has_no_recipe() -> None:
    assert read_image_processor(Source(Path("model"), "safetensors", {}, {})) is None
    assert read({"image_processor_type": "ViTImageProcessor"}) is None


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 0}, {}, "patch_size"),
        (
            {"image_processor_type": "Qwen2VLImageProcessor", "image_std": [1, 0, 1]},
            {},
            "deviation",
        ),
        ({"image_processor_type": "Qwen2VLImageProcessor", "resample": 9}, {}, "resample"),
        ({"image_processor_type": "Qwen2VLImageProcessor", "size": "big"}, {}, None),
        ({"image_processor_type": "Qwen2VLImageProcessor", "do_resize": False}, {}, "resize"),
        ({"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True}, VISION, "pan"),
        (
            {"image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": False},
            {"scale_factor": 4},
            "do_image_splitting",
        ),
        ({"image_processor_type": "Gemma3ImageProcessor"}, {}, "merged into its tokens"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(
    settings: dict[str, Any], config: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert read(settings, config) == read({**settings, "size": {}}, config)
        return
    with pytest.raises(SourceError, match=message) as refused:
        read(settings, config)
    assert refused.value.where == "model/preprocessor_config.json"
