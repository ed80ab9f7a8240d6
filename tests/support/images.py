"""Recipes of pixels and small images for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image
from rdrr_manifests.models import Processor, Tiles, Video
from rdrr_runtime.images.patches import ImagePatches

QWEN = Processor(
    sizing="pixel_bounds",
    resample="bicubic",
    min_pixels=64 * 64,
    max_pixels=128 * 128,
    rescale_factor=1 / 255,
    mean=(0.48, 0.46, 0.41),
    deviation=(0.27, 0.26, 0.28),
    patch_size=16,
    temporal_patch_size=2,
    merge_size=2,
    patch_order="merged",
    placeholder="<|image_pad|>",
    token="<|image_pad|>",
)
VIDEO = Video(
    placeholder="<|vision_start|><|video_pad|><|vision_end|>",
    before="<{seconds} seconds><|vision_start|>",
    after="<|vision_end|>",
    frames_per_second=2,
    min_frames=4,
    max_frames=16,
    min_pixels=32 * 32 * 8,
    max_pixels=96 * 96 * 8,
)
SEES_VIDEOS = QWEN.model_copy(update={"video": VIDEO})
GEMMA3 = Processor(
    sizing="fixed",
    resample="bilinear",
    height=112,
    width=56,
    rescale_factor=1 / 255,
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
    patch_size=14,
    merge_size=4,
    placeholder="<start_of_image>",
    token="<image_soft_token>",
    before="\n\n<start_of_image>",
    after="<end_of_image>\n\n",
)
GEMMA4 = Processor(
    sizing="token_budget",
    resample="bicubic",
    max_tokens=70,
    rescale_factor=1 / 255,
    mean=(0, 0, 0),
    deviation=(1, 1, 1),
    patch_size=16,
    merge_size=3,
    channel_order="last",
    placeholder="<|image|>",
    token="<|image|>",
    before="<|image>",
    after="<image|>",
)

IDEFICS3 = Processor(
    sizing="tiles",
    resample="lanczos",
    height=56,
    width=56,
    tiles=Tiles(
        longest_side=160,
        before="<fake_token_around_image><row_{row}_col_{column}>",
        row_after="\n",
        after="\n",
    ),
    rescale_factor=1 / 255,
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
    patch_size=14,
    merge_size=2,
    placeholder="<image>",
    token="<image>",
    before="<fake_token_around_image><global-img>",
    after="<fake_token_around_image>",
)


def drawn_image(height: int, width: int) -> Image.Image:
    """Return an image that no flip, turn or exchange of channels leaves as it is."""
    rows, columns = np.mgrid[0:height, 0:width]
    red, green = 255 * rows // max(height - 1, 1), 255 * columns // max(width - 1, 1)
    blue = (rows * 7 + columns * 13) % 256
    return Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8))


def save_processor(folder: Path, patch_size: int = 16) -> None:
    """Write the settings of Qwen's image processor to a checkpoint."""
    settings = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": patch_size}
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(settings), encoding="utf-8")


def pixels_of(image: ImagePatches, size: int) -> np.ndarray:
    """Return the pixels of the frames of merged patches of one frame, [frames, 3, height, width].

    Args:
        image: The patches, in rows of the squares of 2 x 2 that become one token.
        size: Height and width of a patch.
    """
    frames, height, width = image.grid
    squares = image.patches.reshape(frames, height // 2, width // 2, 2, 2, 3, size, size)
    pixels = squares.transpose(0, 5, 1, 3, 6, 2, 4, 7)
    return pixels.reshape(frames, 3, height * size, width * size)
